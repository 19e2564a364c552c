"""gloo's all_reduce, through PyTorch, on the questions of bench_allreduce.

f32 sum, in place, the median of the slowest rank's times. Prints one line per size: bytes,
microseconds.

    python3 gloo_allreduce.py RANKS [FIRST_BYTES] [LAST_BYTES] [FACTOR]
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def median_of_slowest(tensor, iterations):
    for _ in range(5):
        dist.all_reduce(tensor)
    seconds = torch.zeros(iterations, dtype=torch.float64)
    dist.barrier()
    last = time.perf_counter()
    for i in range(iterations):
        dist.all_reduce(tensor)
        now = time.perf_counter()
        seconds[i] = now - last
        last = now
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.sort().values[iterations // 2].item()


def run(rank, ranks, port, sizes):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for size in sizes:
        tensor = torch.zeros(size // 4)
        iterations = min(max((1 << 28) // size, 5), 500)
        seconds = median_of_slowest(tensor, iterations)
        if rank == 0:
            print(f"{size} {seconds * 1e6:.2f}", flush=True)
    dist.destroy_process_group()


def main():
    numbers = [int(text) for text in sys.argv[1:]]
    ranks, first, last, factor = (numbers + [2, 4, 64 << 20, 4][len(numbers):])[:4]
    sizes = []
    size = max(first, 4)
    while size <= last:
        sizes.append(size)
        size *= max(factor, 2)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(run, args=(ranks, port, sizes), nprocs=ranks)


if __name__ == "__main__":
    main()
