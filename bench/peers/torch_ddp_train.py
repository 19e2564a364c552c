"""Training steps of PyTorch's DistributedDataParallel: the peer of bench_train.

Runs as one rank of a job in torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
with gloo and one thread. Goes through the phases of bench/train_rank.h, and writes what that does.
"""

import argparse
import os
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


class Trainer:
    """A model that is trained on one batch, over and over."""

    def __init__(self, options, rank, wrapped):
        torch.manual_seed(1)
        self.model = make_cnn() if options.model == "cnn" else make_mlp()
        if wrapped:
            self.model = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        torch.manual_seed(2 + rank)
        self.images = torch.randn(options.batch, 1, 28, 28)
        self.labels = torch.randint(0, 10, (options.batch,))
        self.steps(WARM_UP_STEPS)

    def steps(self, count):
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(self.images), self.labels).backward()
            self.optimizer.step()
            seconds.append(time.perf_counter() - start)
        return seconds


def report(phase, seconds):
    print(f"{phase} {sum(seconds):.9f} {sorted(seconds)[len(seconds) // 2]:.9f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    alone = Trainer(options, rank, wrapped=False)
    together = Trainer(options, rank, wrapped=True)
    for _ in range(options.rounds):
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
