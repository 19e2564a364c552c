"""Training steps of PyTorch's DistributedDataParallel: the peer of bench_train.

Runs as one rank of a job in torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
with one thread, and with gloo, or NCCL where each rank has a CUDA device of its own: NCCL refuses
two ranks on one. Goes through the phases of bench/train_rank.h, and writes what that does.

On a device it is what PyTorch's own guide to speed advises without a compiler: autocast, fused
AdamW, cuDNN's algorithms chosen by measuring, images channels-last in bf16. f32 is multiplied in
TF32 where LOCKSTEP_TF32=1, as by Lockstep.
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
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary=128, context=128, width=256, layers=4, heads=8, tied=False):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=not tied)
        if tied:
            nn.init.normal_(self.tokens.weight, std=0.02)
            self.head.weight = self.tokens.weight

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
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


def make_gpt2():
    return Gpt(50257, 1024, 768, 12, 12, tied=True)


def make_tiny():
    return Gpt(17, 8, 16, 1, 2, tied=True)


MODELS = {
    "cnn": make_cnn,
    "mlp": make_mlp,
    "gpt": Gpt,
    "resnet": make_resnet,
    "gpt2": make_gpt2,
    "tiny": make_tiny,
}
# Different tokens, and the most of a sample.
TOKENS = {"gpt": (128, 128), "gpt2": (50257, 1024), "tiny": (17, 8)}


def make_batch(model, batch, tokens):
    if model in TOKENS:
        vocabulary, most = TOKENS[model]
        tokens = tokens or most
        return (
            torch.randint(0, vocabulary, (batch, tokens)),
            torch.randint(0, vocabulary, (batch * tokens,)),
        )
    shape = (3, 32, 32) if model == "resnet" else (1, 28, 28)
    return torch.randn(batch, *shape), torch.randint(0, 10, (batch,))


class Trainer:
    """A model that is trained on one batch, over and over."""

    def __init__(self, options, rank, device, wrapped):
        self.device, self.low = device, options.dtype == "bf16"
        torch.manual_seed(1)
        self.model = MODELS[options.model]().to(device)
        torch.manual_seed(2 + rank)
        inputs, labels = make_batch(options.model, options.batch, options.tokens)
        self.inputs, self.labels = inputs.to(device), labels.to(device)
        on_device = device.type == "cuda"
        if on_device and self.low and inputs.dim() == 4:
            self.model = self.model.to(memory_format=torch.channels_last)
            self.inputs = self.inputs.to(memory_format=torch.channels_last)
        if wrapped:
            self.model = DistributedDataParallel(self.model)
        if options.model in TOKENS:
            # Fused on the CPU as well it would be another optimiser than what people have there.
            fused = {"fused": True} if on_device else {}
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, **fused)
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.steps(WARM_UP_STEPS)

    def steps(self, count):
        for _ in range(count):
            self.optimizer.zero_grad()
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.low):
                logits = self.model(self.inputs).reshape(self.labels.numel(), -1)
                loss = F.cross_entropy(logits, self.labels)
            loss.backward()
            self.optimizer.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def timed_steps(self, count):
        at_once = count if self.device.type == "cuda" else 1
        seconds = []
        for _ in range(0, count, at_once):
            start = time.perf_counter()
            self.steps(at_once)
            seconds += [(time.perf_counter() - start) / at_once] * at_once
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
    parser.add_argument("--tokens", type=int, help="of a sample of a gpt")
    parser.add_argument("--device", default="cpu", help="one for all ranks, or one for each: LIST")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    options = parser.parse_args()

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    devices = [torch.device(name) for name in options.device.split(",")]
    device = devices[rank % len(devices)]
    torch.set_num_threads(1)
    own_devices = len(set(devices)) == ranks
    if device.type == "cuda":
        torch.cuda.set_device(device)
        tf32 = os.environ.get("LOCKSTEP_TF32") == "1"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
    dist.init_process_group("nccl" if device.type == "cuda" and own_devices else "gloo")
    before = most_memory()
    alone = Trainer(options, rank, device, wrapped=False)
    if rank == 0:
        print("parameters", sum(p.numel() for p in alone.model.parameters()))
        print("memory", most_memory() - before)
        if device.type == "cuda":
            print("device_memory", torch.cuda.max_memory_allocated(device))
    together = Trainer(options, rank, device, wrapped=True)
    for _ in range(options.turns):
        dist.barrier()
        if rank == 0:
            alone.steps(1)
            report("one", alone.timed_steps(options.steps))
        dist.barrier()
        alone.steps(1)
        dist.barrier()
        report("apart", alone.timed_steps(options.steps))
        dist.barrier()
        together.steps(1)
        report("together", together.timed_steps(options.steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
