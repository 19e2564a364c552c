#!/usr/bin/env python3
"""Writes layers.inc: what PyTorch computes, in f64, for norms, attention, losses, recurrent layers,
optimisers and schedules.

    python3 make_layers.py > layers.inc      (needs torch; layers.inc was made with 2.15.0)

Each line is a name and its values, all in one C++ string; see helpers.py.
"""

import torch
import torch.nn.functional as F

from helpers import assign, leaf, optimise, put_gradients, schedule, wave

print('R"(', end="")

# ---- Norms ----

x, w, b = leaf(1, 2, 4, 3, 2), leaf(2, 4), leaf(3, 4)
put_gradients("group_norm", F.group_norm(x, 2, w, b, eps=1e-3), True, x=x, weight=w, bias=b)
x, w, b = leaf(1, 2, 3, 5), leaf(2, 3), leaf(3, 3)
put_gradients("instance_norm", F.instance_norm(x, None, None, w, b, True, 0.1, 1e-3), True, x=x,
              weight=w, bias=b)
x, w, b = leaf(1, 3, 5), leaf(2, 5), leaf(3, 5)
put_gradients("layer_norm.rows", F.layer_norm(x, (5,), w, b), True, x=x, weight=w, bias=b)

# ---- Attention ----


def attention(name, **options):
    q, k, v = leaf(1, 2, 3, 5, 4), leaf(2, 2, 3, 7, 4), leaf(3, 2, 3, 7, 6)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, k, v, **options)
        put_gradients(f"attention.{name}", y, True, q=q, k=k, v=v)


attention("plain")
attention("causal", is_causal=True, scale=0.3)
attention("mask", attn_mask=wave(4, 5, 7) > -0.5)
attention("bias", attn_mask=wave(4, 3, 5, 7))

m = torch.nn.MultiheadAttention(6, 3, batch_first=True)
for k, p in enumerate(m.parameters()):
    assign(p, 5 + k)
x = leaf(1, 2, 4, 6)
causal = torch.ones(4, 4).triu(1).bool()
y = m(x, x, x, attn_mask=causal, need_weights=False)[0]
put_gradients("multihead.self", y, x=x, **{n.replace(".", "_"): p for n, p in m.named_parameters()})
x, z = leaf(1, 2, 4, 6), leaf(2, 2, 5, 6)
padding = torch.tensor([[False, False, False, True, True], [False, True, False, False, False]])
y = m(x, z, z, key_padding_mask=padding, attn_mask=wave(3, 4, 5), need_weights=False)[0]
put_gradients("multihead.cross", y, x=x, z=z)

for name, options in (("post", dict(activation="relu")),
                      ("pre", dict(activation="gelu", norm_first=True))):
    m = torch.nn.TransformerEncoderLayer(6, 2, dim_feedforward=5, batch_first=True, **options)
    m.train(False)
    for k, p in enumerate(m.parameters()):
        assign(p, 5 + k)
    x = leaf(1, 2, 4, 6)
    put_gradients(f"transformer.{name}", m(x, src_mask=causal), x=x,
                  **{n.replace(".", "_"): p for n, p in m.named_parameters()})

# ---- Activations and embedding ----

for name, f in (("silu", F.silu), ("softplus", F.softplus),
                ("softmax", lambda x: F.softmax(x, 1)),
                ("log_softmax", lambda x: F.log_softmax(x, 0))):
    x = leaf(1, 3, 7)
    put_gradients(name, f(3 * x), True, x=x)
w = leaf(2, 6, 3)
put_gradients("embedding.padding",
              F.embedding(torch.tensor([[1, 5, 1], [0, 1, 3]]), w, padding_idx=1), weight=w)

# ---- Recurrent layers ----

for kind in ("LSTM", "GRU"):
    for name, layers, options in (("plain", 1, {}), ("deep", 2, dict(bidirectional=True)),
                                  ("unbiased", 1, dict(bias=False))):
        m = getattr(torch.nn, kind)(3, 4, layers, batch_first=True, **options)
        for k, p in enumerate(m.parameters()):
            assign(p, 5 + k)
        places = layers * (2 if name == "deep" else 1)
        x, h, c = leaf(1, 2, 5, 3), leaf(2, places, 2, 4), leaf(3, places, 2, 4)
        if kind == "LSTM":
            y, (hn, cn) = m(x, (h, c))
            y = torch.cat([y.reshape(-1), hn.reshape(-1), cn.reshape(-1)])
            leaves = dict(x=x, h=h, c=c)
        else:
            y, hn = m(x, h)
            y = torch.cat([y.reshape(-1), hn.reshape(-1)])
            leaves = dict(x=x, h=h)
        put_gradients(f"{kind.lower()}.{name}", y, name == "plain", **leaves,
                      **dict(m.named_parameters()))

# ---- Losses ----

logits, classes = (6, 5), torch.tensor([2, 0, -100, 4, 4, 1])
weight = wave(3, 5).abs() + 0.1
for reduction in ("none", "mean", "sum"):

    def loss(name, f, second=True, **inputs):
        put_gradients(f"{name}.{reduction}", f(*inputs.values()), second, **inputs)

    loss("cross_entropy.smooth", lambda x: F.cross_entropy(
        x, classes, weight, label_smoothing=0.2, reduction=reduction), x=leaf(1, *logits))
    loss("cross_entropy.weight", lambda x: F.cross_entropy(
        x, classes, weight, reduction=reduction), x=leaf(1, *logits))
    loss("cross_entropy.images", lambda x: F.cross_entropy(
        x, torch.tensor([[1, 3, -100], [2, 0, 3]]), label_smoothing=0.1, reduction=reduction),
        x=leaf(1, 2, 4, 3))
    loss("cross_entropy.probabilities", lambda x, t: F.cross_entropy(
        x, t, weight, label_smoothing=0.2, reduction=reduction), x=leaf(1, *logits),
        t=leaf(2, *logits))
    loss("nll_loss", lambda x: F.nll_loss(x, classes, weight, reduction=reduction),
         x=leaf(1, *logits))
    pair = dict(x=leaf(1, *logits), t=leaf(2, *logits))
    loss("l1_loss", lambda x, t: F.l1_loss(x, t, reduction=reduction), False, **pair)
    loss("smooth_l1_loss", lambda x, t: F.smooth_l1_loss(x, t, reduction=reduction, beta=0.7),
         False, **pair)
    loss("huber_loss", lambda x, t: F.huber_loss(x, t, reduction=reduction, delta=0.7), False,
         **pair)
    loss("bce_loss", lambda x: F.binary_cross_entropy(
        torch.sigmoid(x), torch.sigmoid(wave(2, *logits)), weight, reduction=reduction),
        x=leaf(1, *logits))
    loss("bce_with_logits", lambda x: F.binary_cross_entropy_with_logits(
        3 * x, torch.sigmoid(wave(2, *logits)), wave(4, 6, 5).abs(), pos_weight=weight,
        reduction=reduction), x=leaf(1, *logits))
    loss("kl_div", lambda x, t: F.kl_div(F.log_softmax(x, 1), F.softmax(t, 1),
                                         reduction=reduction), **pair)
    loss("kl_div.log", lambda x, t: F.kl_div(F.log_softmax(x, 1), F.log_softmax(t, 1),
                                             reduction=reduction, log_target=True), **pair)

# ---- Optimisers and schedules ----


class Lamb(torch.optim.Optimizer):
    """You et al., 2020, algorithm 2, with phi the identity."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), eps = group["betas"], group["eps"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                s.setdefault("exp_avg", torch.zeros_like(p)).mul_(b1).add_(p.grad, alpha=1 - b1)
                s.setdefault("exp_avg_sq", torch.zeros_like(p)).mul_(b2).add_(
                    p.grad ** 2, alpha=1 - b2)
                s["step"] = s.get("step", torch.tensor(0.0)) + 1
                m = s["exp_avg"] / (1 - b1 ** s["step"])
                v = s["exp_avg_sq"] / (1 - b2 ** s["step"])
                along = m / (v.sqrt() + eps) + group["weight_decay"] * p
                p.sub_(along * (group["lr"] * p.norm() / along.norm()))


O = torch.optim
optimise("rmsprop.plain", O.RMSprop)
optimise("rmsprop.decay",
         lambda p: O.RMSprop(p, lr=0.02, alpha=0.9, eps=1e-4, weight_decay=0.1))
optimise("rmsprop.momentum", lambda p: O.RMSprop(p, lr=0.02, momentum=0.8))
optimise("rmsprop.centered",
         lambda p: O.RMSprop(p, lr=0.02, eps=1e-3, momentum=0.5, centered=True))
optimise("adagrad.plain", O.Adagrad)
optimise("adagrad.decay", lambda p: O.Adagrad(p, lr=0.1, lr_decay=0.05, weight_decay=0.1, eps=1e-4,
                                              initial_accumulator_value=0.3))
optimise("lamb.plain", Lamb)
optimise("lamb.decay", lambda p: Lamb(p, lr=0.05, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1))

L = O.lr_scheduler
schedule("multi_step_lr", lambda o: L.MultiStepLR(o, milestones=[2, 5, 5, 9], gamma=0.3), 12)
schedule("linear_lr", lambda o: L.LinearLR(o, start_factor=0.1, end_factor=0.8, total_iters=4), 8)
schedule("exponential_lr", lambda o: L.ExponentialLR(o, gamma=0.9), 6)
schedule("one_cycle_lr.cos", lambda o: L.OneCycleLR(o, max_lr=0.5, total_steps=11,
                                                    cycle_momentum=False), 11)
schedule("one_cycle_lr.linear", lambda o: L.OneCycleLR(
    o, max_lr=0.5, total_steps=11, pct_start=0.4, anneal_strategy="linear", div_factor=10,
    final_div_factor=100, cycle_momentum=False), 11)


def metric(i):
    return [3, 2, 2.1, 1.9999, 2.5, 2.5, 1, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2][i]


schedule("plateau.min", lambda o: L.ReduceLROnPlateau(o, factor=0.5, patience=1), 16, metric)
schedule("plateau.max", lambda o: L.ReduceLROnPlateau(
    o, mode="max", factor=0.5, patience=0, threshold=0.1, threshold_mode="abs", cooldown=2,
    min_lr=0.1), 16, metric)

print(')"')
