#!/usr/bin/env python3
"""Writes nn.inc: what PyTorch computes, in f64, for the layers, losses, optimisers and schedules.

    python3 make_golden.py > nn.inc          (needs torch; nn.inc was made with 2.15)

Each line is a name and its values, all in one C++ string, so that tests need no path; see
helpers.py.
"""

import torch
import torch.nn.functional as F

from helpers import leaf, optimise, put, put_gradients, schedule, wave

print('R"(', end="")


def conv(name, shape, weight_shape, **options):
    x, w, b = leaf(1, *shape), leaf(2, *weight_shape), leaf(3, weight_shape[0])
    put_gradients(f"conv2d.{name}", F.conv2d(x, w, b, **options), x=x, weight=w, bias=b)


conv("plain", (2, 3, 7, 5), (4, 3, 3, 3), padding=1)
conv("strided", (2, 4, 9, 8), (6, 2, 3, 2), stride=(2, 1), padding=(1, 2), dilation=(2, 3), groups=2)
conv("depthwise", (1, 3, 6, 7), (3, 1, 3, 3), padding=1, groups=3)
conv("pointwise", (3, 5, 4, 3), (2, 5, 1, 1), stride=2)


def batch_norm(name, shape, momentum):
    module = (torch.nn.BatchNorm1d if len(shape) < 4 else torch.nn.BatchNorm2d)(
        shape[1], eps=1e-3, momentum=momentum)
    with torch.no_grad():
        module.weight.copy_(wave(5, shape[1]) + 1)
        module.bias.copy_(wave(6, shape[1]))
    for step in range(3):
        module.zero_grad()
        x = leaf(10 + step, *shape)
        y = module(x)
    put_gradients(f"{name}.train", y, x=x, weight=module.weight, bias=module.bias)
    put(f"{name}.running_mean", module.running_mean)
    put(f"{name}.running_var", module.running_var)
    module.eval()
    module.zero_grad()
    x = leaf(20, *shape)
    put_gradients(f"{name}.eval", module(x), x=x, weight=module.weight, bias=module.bias)


batch_norm("batch_norm.rows", (5, 3), 0.1)
batch_norm("batch_norm.lines", (3, 2, 4), 0.3)
batch_norm("batch_norm.images", (3, 2, 4, 5), 0.1)
batch_norm("batch_norm.average", (3, 2, 4, 5), None)

x, w, b = leaf(1, 4, 3, 5), leaf(2, 3, 5), leaf(3, 3, 5)
put_gradients("layer_norm", F.layer_norm(x, (3, 5), w, b, eps=1e-4), x=x, weight=w, bias=b)

x, w, b = leaf(1, 4, 3, 5), leaf(2, 7, 5), leaf(3, 7)
put_gradients("linear", F.linear(x, w, b), x=x, weight=w, bias=b)

w = leaf(2, 6, 3)
put_gradients("embedding", F.embedding(torch.tensor([[1, 5, 1], [0, 1, 3]]), w), weight=w)

for name, f in (("relu", F.relu), ("gelu", F.gelu), ("sigmoid", torch.sigmoid),
                ("tanh", torch.tanh)):
    x = leaf(1, 3, 7)
    put_gradients(name, f(3 * x), x=x)

x = leaf(1, 2, 3, 9, 8)
put_gradients("max_pool2d", F.max_pool2d(x, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
              x=x)
for count in (True, False):
    x = leaf(1, 2, 3, 9, 8)
    y = F.avg_pool2d(x, (3, 2), stride=(2, 3), padding=1, count_include_pad=count)
    put_gradients(f"avg_pool2d.{'padded' if count else 'inside'}", y, x=x)

target = torch.tensor([2, 0, -100, 4, 4, 1])
for reduction in ("none", "mean", "sum"):
    x = leaf(1, 6, 5)
    put_gradients(f"cross_entropy.{reduction}", F.cross_entropy(x, target, reduction=reduction), x=x)
    x = leaf(1, 6, 5)
    put_gradients(f"mse_loss.{reduction}", F.mse_loss(x, wave(2, 6, 5), reduction=reduction), x=x)


O = torch.optim
optimise("sgd.plain", lambda p: O.SGD(p, lr=0.1))
optimise("sgd.decay", lambda p: O.SGD(p, lr=0.1, weight_decay=0.05))
optimise("sgd.momentum", lambda p: O.SGD(p, lr=0.1, momentum=0.9, dampening=0.3,
                                         weight_decay=0.05))
optimise("sgd.nesterov", lambda p: O.SGD(p, lr=0.1, momentum=0.8, weight_decay=0.05, nesterov=True))
optimise("adam.plain", lambda p: O.Adam(p, lr=0.02))
optimise("adam.decay", lambda p: O.Adam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1))
optimise("adamw", lambda p: O.AdamW(p, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1))
optimise("adamw.defaults", lambda p: O.AdamW(p))

schedule("step_lr", lambda o: O.lr_scheduler.StepLR(o, step_size=3, gamma=0.3), 11)
schedule("cosine", lambda o: O.lr_scheduler.CosineAnnealingLR(o, T_max=9, eta_min=0.01), 10)

for name, limit in (("small", 0.75), ("large", 1e4)):
    a, b = leaf(1, 7), leaf(2, 2, 3)
    a.grad, b.grad = wave(3, 7), wave(4, 2, 3)
    put(f"clip_grad_norm.{name}", [torch.nn.utils.clip_grad_norm_([a, b], limit).item()])
    put(f"clip_grad_norm.{name}.a", a.grad)
    put(f"clip_grad_norm.{name}.b", b.grad)

print(')"')
