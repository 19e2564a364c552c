"""Training steps of PyTorch's DistributedDataParallel: the peer of bench_train.

Runs as one rank of a job in torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
with gloo and one thread, and writes the seconds of each timed step, one a line.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WARM_UP_STEPS = 5


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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    rank = int(os.environ["RANK"])
    ranks = int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = make_cnn() if options.model == "cnn" else make_mlp()
    if ranks > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    torch.manual_seed(2 + rank)
    images = torch.randn(options.batch, 1, 28, 28)
    labels = torch.randint(0, 10, (options.batch,))
    for step in range(WARM_UP_STEPS + options.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        seconds = time.perf_counter() - start
        if step >= WARM_UP_STEPS:
            print(f"{seconds:.9f}")
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
