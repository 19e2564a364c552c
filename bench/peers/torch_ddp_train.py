"""Training steps of PyTorch's DistributedDataParallel: the peer of bench_train.

Runs as one rank of a job in torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
with gloo and one thread. Goes through the phases of bench/train_rank.h, and writes what that does.
"""

import argparse
import os
import resource
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WARM_UP_STEPS = 3


def make_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 10),
    )


def make_mlp():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(28 * 28, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, qkv):
        n, t, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        q, k, v = qkv.view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:  # before 2.0
            scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
            hidden = torch.ones(t, t).triu(1).bool()
            seen = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        return seen.transpose(1, 2).reshape(n, t, width)

    def forward(self, x):
        x = x + self.out(self.attend(self.qkv(self.norm1(x))))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary=128, context=128, width=256, layers=4, heads=8):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


class BasicBlock(nn.Module):
    def __init__(self, in_channels, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.shortcut = nn.Identity()
        if stride != 1 or in_channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def make_resnet():
    parts = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    in_channels = 64
    for out in (64, 128, 256, 512):
        parts.append(BasicBlock(in_channels, out, 1 if in_channels == out else 2))
        parts.append(BasicBlock(out, out, 1))
        in_channels = out
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


MODELS = {"cnn": make_cnn, "mlp": make_mlp, "gpt": Gpt, "resnet": make_resnet}


def make_batch(model, batch):
    if model == "gpt":
        return torch.randint(0, 128, (batch, 128)), torch.randint(0, 128, (batch * 128,))
    shape = (3, 32, 32) if model == "resnet" else (1, 28, 28)
    return torch.randn(batch, *shape), torch.randint(0, 10, (batch,))


class Trainer:
    """A model that is trained on one batch, over and over."""

    def __init__(self, options, rank, wrapped):
        torch.manual_seed(1)
        self.model = MODELS[options.model]()
        if wrapped:
            self.model = DistributedDataParallel(self.model)
        if options.model == "gpt":
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        torch.manual_seed(2 + rank)
        self.inputs, self.labels = make_batch(options.model, options.batch)
        self.steps(WARM_UP_STEPS)

    def steps(self, count):
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            self.optimizer.zero_grad()
            logits = self.model(self.inputs).reshape(self.labels.numel(), -1)
            F.cross_entropy(logits, self.labels).backward()
            self.optimizer.step()
            seconds.append(time.perf_counter() - start)
        return seconds


def report(phase, seconds):
    print(f"{phase} {sum(seconds):.9f} {sorted(seconds)[len(seconds) // 2]:.9f}")


def most_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(MODELS), default="cnn")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()

    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    before = most_memory()
    alone = Trainer(options, rank, wrapped=False)
    if rank == 0:
        print("parameters", sum(p.numel() for p in alone.model.parameters()))
        print("memory", most_memory() - before)
    together = Trainer(options, rank, wrapped=True)
    for _ in range(options.turns):
        dist.barrier()
        if rank == 0:
            alone.steps(1)
            report("one", alone.steps(options.steps))
        dist.barrier()
        alone.steps(1)
        dist.barrier()
        report("apart", alone.steps(options.steps))
        dist.barrier()
        together.steps(1)
        report("together", together.steps(options.steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
