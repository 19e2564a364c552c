"""What the scripts that write golden numbers share. Inputs are not written: they are wave(k, n), a
formula that tests/golden/golden.h has too."""

import math

import torch

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def wave(k, *shape):
    """Values in (-1.5, 1.5) without symmetries; k makes them different."""
    n = math.prod(shape)
    values = [math.sin(0.7 * k + 0.37 * i) + 0.5 * math.cos(1.3 * i + k) for i in range(n)]
    return torch.tensor(values).reshape(shape)


def leaf(k, *shape):
    return wave(k, *shape).requires_grad_()


def assign(tensor, k):
    """Gives a parameter the values of a wave."""
    with torch.no_grad():
        tensor.copy_(wave(k, *tensor.shape))


def put(name, values):
    if isinstance(values, torch.Tensor):
        values = values.detach().reshape(-1).tolist()
    print(name, *(f"{v:.17g}" for v in values))


def put_gradients(name, y, second=False, **leaves):
    """y, the gradients of the sum of y times a wave, and, for `second`, the gradients of the sum of
    these times waves."""
    put(f"{name}.y", y)
    gradients = torch.autograd.grad((y * wave(99, *y.shape)).sum(), list(leaves.values()),
                                    create_graph=second)
    for key, gradient in zip(leaves, gradients):
        put(f"{name}.{key}.grad", gradient)
    if not second:
        return
    total = sum((g * wave(98, *g.shape)).sum() for g in gradients)
    seconds = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    for (key, tensor), gradient in zip(leaves.items(), seconds):
        put(f"{name}.{key}.grad2", torch.zeros_like(tensor) if gradient is None else gradient)


def optimise(name, make):
    """Twenty steps; the second parameter has no gradient in every third one."""
    a, b = leaf(1, 7), leaf(2, 2, 3)
    optimizer = make([a, b])
    for step in range(20):
        a.grad = wave(30 + step, 7) + 0.1 * a.detach()
        b.grad = None if step % 3 == 1 else wave(60 + step, 2, 3) + 0.1 * b.detach()
        optimizer.step()
        if step in (0, 1, 19):
            put(f"{name}.{step + 1}.a", a)
            put(f"{name}.{step + 1}.b", b)
    for key in ("momentum_buffer", "exp_avg", "exp_avg_sq", "square_avg", "grad_avg", "sum",
                "step"):
        for label, tensor in (("a", a), ("b", b)):
            state = optimizer.state[tensor].get(key)
            if state is not None:
                put(f"{name}.{key}.{label}", state)


def schedule(name, make, steps, metric=None):
    optimizer = torch.optim.SGD([leaf(1, 2)], lr=0.5)
    s = make(optimizer)
    rates = []
    for i in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        s.step() if metric is None else s.step(metric(i))
    put(name, rates)
