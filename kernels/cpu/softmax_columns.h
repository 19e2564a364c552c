#pragma once

#include "lockstep/kernels/view.h"

// Soft-max and its relatives where the elements of a column stand apart in memory and columns side
// by side. The arguments are those of the kernels in kernels/softmax.h; no view is empty.
namespace lockstep::kernels {

// Whether there are columns enough beside each other, and they do not run along x's memory. If not,
// the axis is better brought to where it is the innermost.
bool runs_in_columns(const View& x, int64_t axis);

void softmax_columns(const View& x, const View& y, int64_t axis);
void softmax_backward_columns(const View& g, const View& y, const View& gx, int64_t axis);
void log_softmax_columns(const View& x, const View& y, int64_t axis);
void log_softmax_backward_columns(const View& g, const View& y, const View& gx, int64_t axis);

}  // namespace lockstep::kernels
