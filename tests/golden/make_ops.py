#!/usr/bin/env python3
"""Writes ops.inc: what PyTorch computes for the table of ops in tests/core/op_table.h.

    python3 make_ops.py > ops.inc            (needs torch; ops.inc was made with 2.15.0)

For each case, in f64: y, the gradients of the sum of y times weights, and the gradients of the sum
of these times weights. For element-wise ops also the values at special numbers, in f64 and f32.
Each line is a name and its values, all in one C++ string. Inputs are not written: sample() and
weights() are in tests/core/op_table.h too.
"""

import math
import warnings

import torch
import torch.nn.functional as F

warnings.simplefilter("ignore")
torch.set_default_dtype(torch.float64)


def sample(shape, low=-1.5, high=1.5, salt=0):
    values = [low + (high - low) * math.fmod(0.5 + 0.6180339887498949 * (i + 1 + 17 * salt), 1)
              for i in range(math.prod(shape))]
    return torch.tensor(values).reshape(shape).requires_grad_()


def weights(y):
    values = [math.sin(1.0 + 0.7 * i) + 0.3 for i in range(y.numel())]
    return torch.tensor(values).reshape(y.shape)


def put(name, values):
    values = torch.zeros(values.shape) + values.detach()  # autograd has zeros without memory
    print(name, *(f"{v:.15g}" for v in values.reshape(-1).tolist()))


def case(name, f, *inputs):
    y = f(*inputs)
    put(f"{name}.y", y)
    if not y.requires_grad:
        return
    first = torch.autograd.grad((y * weights(y)).sum(), inputs, create_graph=True)
    total = sum((g * weights(g)).sum() for g in first)
    second = (torch.autograd.grad(total, inputs, allow_unused=True) if total.requires_grad
              else [None] * len(inputs))
    for i, (x, g, h) in enumerate(zip(inputs, first, second)):
        put(f"{name}.{i}.grad", g)
        put(f"{name}.{i}.grad2", torch.zeros_like(x) if h is None else h)


NAN, INF = math.nan, math.inf
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-30, -1e-30, 1e30, -1e30, 3e38, -3e38,
           87.5, -87.5, 104.0, -104.0, 19.0, -19.0]
SPECIAL_PAIRS = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e30, -1e30, 1e-30]


def special(name, f):
    for label, dtype in (("f64", torch.float64), ("f32", torch.float32)):
        put(f"{name}.special.{label}", f(torch.tensor(SPECIAL, dtype=dtype)))


def special_pairs(name, f):
    for label, dtype in (("f64", torch.float64), ("f32", torch.float32)):
        x = torch.tensor(SPECIAL_PAIRS, dtype=dtype)
        put(f"{name}.special.{label}", f(x[:, None], x[None, :]))


def sign(x):  # NaN for NaN
    return torch.where(torch.isnan(x), x, torch.sign(x))


print('R"(', end="")

# ---- Element-wise: name, function, and the range of samples where it is not the default one ----

UNARY = [
    ("neg", torch.neg), ("abs", torch.abs), ("sign", sign), ("exp", torch.exp),
    ("log", torch.log, 0.3), ("log1p", torch.log1p, -0.6), ("expm1", torch.expm1),
    ("sqrt", torch.sqrt, 0.3), ("rsqrt", torch.rsqrt, 0.3), ("sin", torch.sin),
    ("cos", torch.cos), ("tanh", torch.tanh), ("sigmoid", torch.sigmoid), ("relu", F.relu),
    ("gelu", F.gelu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")), ("silu", F.silu),
    ("softplus", lambda x: torch.logaddexp(x, torch.zeros_like(x))), ("erf", torch.erf),
    ("square", torch.square), ("reciprocal", torch.reciprocal, 0.4),
    ("leaky_relu", F.leaky_relu),
    ("clamp", lambda x: torch.clamp(x, -0.7, 0.9)),
    ("clamp_min", lambda x: torch.clamp(x, min=-0.7)),
    ("clamp_max", lambda x: torch.clamp(x, max=0.9)),
    ("masked_fill", lambda x: x.masked_fill(x > 0.2, -1.0)),
    ("isnan", torch.isnan), ("isinf", torch.isinf), ("isfinite", torch.isfinite),
]
for name, f, *low in UNARY:
    case(name, f, sample((3, 5), low[0] if low else -1.7, 1.9))
    special(name, f)

BINARY = [
    ("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div),
    ("pow", torch.pow), ("maximum", torch.maximum), ("minimum", torch.minimum),
    ("prelu", lambda a, b: torch.where(a > 0, a, a * b)),
    ("eq", torch.eq), ("ne", torch.ne), ("lt", torch.lt), ("le", torch.le), ("gt", torch.gt),
    ("ge", torch.ge),
    ("where", lambda a, b: torch.where(a > b, a * a, b)),
]
for name, f in BINARY:
    case(name, f, sample((3, 5), 0.5, 2), sample((3, 5), 0.7, 2.2, 1))
    case(name + "_broadcast", f, sample((3, 1, 2), 0.5, 2), sample((5, 1), 0.7, 2.2, 1))
    special_pairs(name, f)

# ---- Reductions ----

X = sample((3, 4, 5))
case("sum", torch.sum, sample((3, 4)))
case("sum_dims", lambda x: torch.exp(x).sum((0, 2)), X)
case("mean", lambda x: torch.exp(x).mean(-1, keepdim=True), X)
case("var", lambda x: torch.var(x, (0, 2)), X)
case("var_biased", lambda x: torch.var(x, 1, correction=0, keepdim=True), X)
case("std", lambda x: torch.std(x, (1, 2)), X)
case("prod", lambda x: torch.prod(x, 1), X)
ZEROS = torch.tensor([[2.0, 0, 3, -1.5, 0.5], [0, 2, 0, 1, 3], [1, -2, 0.5, 4, 1]]).requires_grad_()
case("prod_zeros", lambda x: torch.prod(x, 1), ZEROS)
case("prod_all", torch.prod, sample((7,), 0.5, 1.5))
case("max", lambda x: torch.amax(torch.exp(x), (1, 2)), X)
case("min", lambda x: torch.amin(torch.exp(x), 0), X)
case("argmax", lambda x: torch.argmax(x, 1).double(), X)
case("argmin", lambda x: torch.argmin(x).double(), X)
case("max_with_indices", lambda x: torch.exp(x.max(1).values) * x.max(1).indices, X)
case("min_with_indices", lambda x: torch.exp(x.min(-1, True).values) * x.min(-1, True).indices, X)
case("norm", lambda x: torch.linalg.vector_norm(x, 2, (0, 1)), X)
case("norm_1", lambda x: torch.linalg.vector_norm(x, 1, (2,)), X)
case("norm_3", lambda x: torch.linalg.vector_norm(x, 3, (1,)), X)
case("norm_max", lambda x: torch.linalg.vector_norm(x, INF, (1,)), X)
case("logsumexp", lambda x: torch.logsumexp(x, (0, 2)), X)
case("cumsum", lambda x: torch.cumsum(torch.exp(x), 1), X)
case("softmax", lambda x: torch.softmax(x, 1), X)
case("log_softmax", lambda x: torch.log_softmax(x, -1), X)

ROWS = torch.tensor([[1, NAN, 2, 3], [INF, 1, 2, 3], [-INF, 1, 2, -3], [INF, -INF, 1, 2],
                     [-INF, -INF, -INF, -INF], [1e30, 1e30, -1e30, 1], [0, 0, 0, 0],
                     [3e38, 3e38, 1, 1]])
for name, f in (("sum", torch.sum), ("mean", torch.mean), ("var", torch.var), ("std", torch.std),
                ("prod", torch.prod), ("max", torch.amax), ("min", torch.amin),
                ("argmax", torch.argmax), ("argmin", torch.argmin),
                ("logsumexp", torch.logsumexp), ("cumsum", torch.cumsum),
                ("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
    put(f"{name}.rows", f(ROWS, 1))

# ---- Shapes and indices ----

INDEX = torch.tensor([[2, 0, 2], [1, 1, 1]])
case("reshape", lambda x: torch.exp(x).reshape(5, 12), X)
case("view", lambda x: torch.exp(x.view(5, 12)), X)
case("permute", lambda x: torch.exp(x.permute(2, 0, 1)), X)
case("expand", lambda x: torch.exp(x.expand(2, 3, 4)), sample((3, 1)))
case("squeeze", lambda x: torch.exp(x.squeeze()), sample((1, 3, 1, 2)))
case("movedim", lambda x: torch.exp(x.movedim(0, -1)), X)
case("diagonal", lambda x: torch.exp(torch.diagonal(x, -1, 2, 0)), X)
case("slice", lambda x: torch.exp(x[:, 1:4:2]), X)
case("select", lambda x: torch.exp(x.select(1, -2)), X)
case("cat", lambda a, b: torch.cat([torch.exp(a), b * b, a], 1), sample((2, 3)),
     sample((2, 4), -1, 1, 1))
case("stack", lambda a, b: torch.stack([torch.exp(a), b * a], 1), sample((2, 3)),
     sample((2, 3), -1, 1, 1))
case("split", lambda x: torch.exp(x.split([1, 0, 4], 2)[2]), X)
case("chunk", lambda x: torch.exp(x.chunk(3, -1)[2]), X)
case("unbind", lambda x: x.unbind(1)[0] * torch.exp(x.unbind(1)[3]), X)
case("index_select", lambda x: torch.exp(x.index_select(1, torch.tensor([2, 0, 2]))), X)
case("index_add", lambda x: torch.exp(torch.zeros(2, 4).index_add(1, torch.tensor([2, 0, 2]), x)),
     sample((2, 3)))
case("gather", lambda x: torch.exp(x.gather(1, INDEX)), sample((3, 4)))
case("scatter_add", lambda a, b: torch.exp(a.scatter_add(0, INDEX, b)), sample((3, 4)),
     sample((2, 3), -1, 1, 1))
case("scatter", lambda a, b: torch.exp(a.scatter(0, torch.tensor([[2, 0, 1], [1, 1, 0]]), b)),
     sample((3, 4)), sample((2, 3), -1, 1, 1))
case("masked_select", lambda x: torch.exp(x.masked_select(torch.tensor([[True], [False], [True]]))),
     sample((3, 5)))
case("nonzero", lambda x: torch.nonzero(x > 0.2).double(), sample((3, 5)))
case("one_hot", lambda x: F.one_hot(torch.tensor([[2, 0], [1, 3]]), 4).double(), sample((1,)))
case("index", lambda x: torch.exp(x[1:, None, ..., torch.tensor([0, -1, 3])]), X)
case("index_pairs", lambda x: torch.exp(x[torch.tensor([2, 0, -1]), :, torch.tensor([1, 1, 4])]), X)
case("index_mask", lambda x: torch.exp(x[x.detach() > 0.3]), X)


def put_slice(a, b):
    a = a.clone()
    a[1:, ..., 1:-1:2] = b
    return torch.exp(a)


def put_places(a, b):
    return torch.exp(a.index_put((torch.tensor([2, 0, 1]), torch.tensor([1, 1, 3])), b))


def add_places(a, b):
    return torch.exp(a.index_put((torch.tensor([2, 0, 2]), torch.tensor([1, 1, 1])), b,
                                 accumulate=True))


case("index_put", put_slice, X, sample((4, 1), -1, 1, 1))
case("index_put_places", put_places, X, sample((3, 5), -1, 1, 1))
case("index_put_accumulate", add_places, X, sample((3, 5), -1, 1, 1))
case("pad", lambda x: torch.exp(F.pad(x, (1, 2, 0, 3), value=0.7)), X)
case("pad_reflect", lambda x: torch.exp(F.pad(x, (3, 1), mode="reflect")), X)
case("pad_replicate", lambda x: torch.exp(F.pad(x, (3, 1), mode="replicate")), X)
case("flip", lambda x: torch.exp(x.flip((0, -1))), X)
case("roll", lambda x: torch.exp(x.roll(-2, 1)), X)
case("tril", lambda x: torch.exp(x.tril(1)), X)
case("triu", lambda x: torch.exp(x.triu(-1)), X)
case("tile", lambda x: torch.exp(x.tile((2, 1, 3))), sample((3, 2)))
case("sort", lambda x: torch.exp(x.sort(1, descending=True).values) * x, X)
case("argsort", lambda x: x.argsort(-1).double(), X)
case("topk", lambda x: torch.exp(x.topk(2, 1).values), X)
case("topk_smallest", lambda x: torch.exp(x.topk(3, 0, largest=False).values), X)

# ---- Products, convolutions, pooling, resizing ----

case("matmul", torch.matmul, sample((3, 4)), sample((4, 5), -1, 1, 1))
case("matmul_batch", torch.matmul, sample((2, 1, 3, 4)), sample((3, 4, 2), -1, 1, 1))
case("matmul_vector", torch.matmul, sample((2, 3, 4)), sample((4,), -1, 1, 1))
case("linear", F.linear, sample((2, 3, 4)), sample((5, 4), -1, 1, 1), sample((5,), -1, 1, 2))


def linear_gelu(x, weight, bias=None):
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


case("linear_gelu", linear_gelu, sample((2, 3, 4)), sample((8, 4), -1, 1, 1), sample((8,), -1, 1, 2))
case("linear_gelu_odd", linear_gelu, sample((3, 4)), sample((5, 4), -1, 1, 1))
for name, equation, *shapes in (
        ("product", "ij,jk->ik", (3, 4), (4, 5)), ("trace", "ii", (4, 4)),
        ("diagonal", "iji->ij", (3, 2, 3)), ("outer", "i,j", (3,), (4,)),
        ("attention", "bihd,bjhd->bhij", (2, 3, 2, 4), (2, 5, 2, 4)),
        ("ellipsis", "...ij,jk", (2, 3, 4), (4, 5)), ("sum", "ijk->j", (2, 3, 4)),
        ("three", "ab,bc,cd->da", (2, 3), (3, 4), (4, 2)), ("implicit", "ba,cb", (2, 3), (4, 2))):
    case(f"einsum_{name}", lambda *x, e=equation: torch.einsum(e, *x),
         *(sample(shape, -1, 1, i) for i, shape in enumerate(shapes)))
for groups in (1, 2):
    case(f"conv2d_{groups}", lambda x, w, b, g=groups: F.conv2d(x, w, b, (2, 1), (1, 2), (1, 2), g),
         sample((2, 4, 5, 6)), sample((6, 4 // groups, 3, 2), -1, 1, 1), sample((6,), -1, 1, 2))
    case(f"conv1d_{groups}", lambda x, w, b, g=groups: F.conv1d(x, w, b, 2, 1, 2, g),
         sample((2, 4, 9)), sample((6, 4 // groups, 3), -1, 1, 1), sample((6,), -1, 1, 2))
    case(f"conv_transpose2d_{groups}",
         lambda x, w, b, g=groups: F.conv_transpose2d(x, w, b, (2, 3), (1, 0), (1, 2), g, (1, 2)),
         sample((2, 4, 3, 2)), sample((4, 6 // groups, 3, 2), -1, 1, 1), sample((6,), -1, 1, 2))
    case(f"conv_transpose1d_{groups}",
         lambda x, w, b, g=groups: F.conv_transpose1d(x, w, b, 3, 1, 2, g, 2),
         sample((2, 4, 5)), sample((4, 6 // groups, 3), -1, 1, 1), sample((6,), -1, 1, 2))
case("max_pool2d", lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0)), sample((2, 3, 5, 4)))
case("avg_pool2d", lambda x: F.avg_pool2d(x, (3, 2), (2, 1), 1), sample((2, 3, 5, 4)))
case("avg_pool2d_inside",
     lambda x: F.avg_pool2d(x, (3, 2), (2, 1), 1, count_include_pad=False), sample((2, 3, 5, 4)))
case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, 4)), sample((2, 3, 7, 5)))
case("adaptive_avg_pool2d_even", lambda x: F.adaptive_avg_pool2d(x, (2, 1)), sample((2, 3, 4, 5)))
case("upsample_nearest", lambda x: F.interpolate(x, (7, 3)), sample((2, 2, 3, 5)))
case("upsample_bilinear", lambda x: F.interpolate(x, (7, 3), mode="bilinear"), sample((2, 2, 3, 5)))
case("upsample_corners",
     lambda x: F.interpolate(x, (7, 3), mode="bilinear", align_corners=True), sample((2, 2, 3, 5)))
print(')"')
