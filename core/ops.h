#pragma once

// Every op on tensors, by the names that the field uses.
#include "lockstep/core/ops/conv.h"
#include "lockstep/core/ops/einsum.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/index.h"
#include "lockstep/core/ops/indexing.h"
#include "lockstep/core/ops/matmul.h"
#include "lockstep/core/ops/norm.h"
#include "lockstep/core/ops/pool.h"
#include "lockstep/core/ops/rearrange.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/resize.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/core/ops/softmax.h"
