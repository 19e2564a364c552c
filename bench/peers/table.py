"""Puts the results of run.sh side by side: the median over its rounds, in microseconds."""

import glob
import json
import os
import statistics
import sys


def from_json(folder, name, place):
    times = {}
    for path in sorted(glob.glob(os.path.join(folder, f"{name}.*.json"))):
        with open(path, encoding="utf-8") as file:
            for row in json.load(file)["rows"]:
                times.setdefault(row["bytes"], []).append(row[place]["time_us"])
    return times


def from_text(folder, name):
    times = {}
    for path in sorted(glob.glob(os.path.join(folder, f"{name}.*.txt"))):
        with open(path, encoding="utf-8") as file:
            for line in file:
                size, microseconds = line.split()
                times.setdefault(int(size), []).append(float(microseconds))
    return times


def main():
    folder, ranks = sys.argv[1], sys.argv[2]
    columns = [
        ("shm, registered", from_json(folder, "shm", "in_place")),
        ("shm, plain", from_json(folder, "shm", "out_of_place")),
        ("tcp", from_json(folder, "tcp", "in_place")),
        ("Open MPI", from_text(folder, "mpi")),
        ("gloo", from_text(folder, "gloo")),
    ]
    columns = [(name, times) for name, times in columns if times]
    print(f"all_reduce f32 sum, {ranks} ranks, median microseconds (Lockstep's first)")
    print("".join([f"{'bytes':>12}"] + [f"{name:>18}" for name, _ in columns]))
    for size in sorted({size for _, times in columns for size in times}):
        cells = [f"{statistics.median(times[size]):18.2f}" if size in times else f"{'-':>18}"
                 for _, times in columns]
        print("".join([f"{size:>12}"] + cells))


if __name__ == "__main__":
    main()
