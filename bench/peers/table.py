"""Puts the results of run.sh side by side, in microseconds: of each program the best of its rounds'
medians. The cores of a virtual machine share a cache in one minute and none in the next, which changes
small collectives twofold; a median over rounds would compare minutes.

    python3 table.py FOLDER RANKS
"""

import glob
import json
import os
import sys


def from_json(folder, name, read, best=min):
    times = {}
    for path in sorted(glob.glob(os.path.join(folder, f"{name}.*.json"))):
        with open(path, encoding="utf-8") as file:
            for row in json.load(file)["rows"]:
                times.setdefault(row["bytes"], []).append(read(row))
    return {size: best(values) for size, values in times.items()}


def from_text(folder, name):
    times = {}
    for path in sorted(glob.glob(os.path.join(folder, f"{name}.*.txt"))):
        with open(path, encoding="utf-8") as file:
            for line in file:
                size, microseconds = line.split()
                times.setdefault(int(size), []).append(float(microseconds))
    return {size: min(values) for size, values in times.items()}


def read_columns(folder):
    columns = [
        ("shm, registered", from_json(folder, "shm", lambda row: row["in_place"]["time_us"])),
        ("shm, plain", from_json(folder, "plain", lambda row: row["in_place"]["time_us"])),
        ("tcp", from_json(folder, "tcp", lambda row: row["in_place"]["time_us"])),
        ("Open MPI", from_text(folder, "mpi")),
        ("gloo", from_text(folder, "gloo")),
    ]
    return [(name, times) for name, times in columns if times]


def main():
    folder, ranks = sys.argv[1], sys.argv[2]
    columns = read_columns(folder)
    limits = [("%limit shm", from_json(folder, "shm", lambda row: row["limit_percent"], max)),
              ("%limit tcp", from_json(folder, "tcp", lambda row: row["limit_percent"], max))]
    columns += [(name, values) for name, values in limits if values]
    print(f"all_reduce f32 sum, {ranks} ranks, microseconds (Lockstep's first)")
    print("".join([f"{'bytes':>12}"] + [f"{name:>17}" for name, _ in columns]))
    for size in sorted({size for _, times in columns for size in times}):
        cells = [f"{times[size]:17.2f}" if size in times else f"{'-':>17}" for _, times in columns]
        print("".join([f"{size:>12}"] + cells))


if __name__ == "__main__":
    main()
