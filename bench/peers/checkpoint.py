"""Saves and loads the same tensors with Lockstep, PyTorch and safetensors, in turns, and prints the
medians side by side. Files are in the system's cache when they are read.

    checkpoint.py BUILD_FOLDER [FOLDER_FOR_FILES] [ROUNDS]

A library that is not installed is left out.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TENSORS, ELEMENTS = 16, 4 << 20


def seconds_of(call):
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def lockstep(build, folder, times):
    path = os.path.join(folder, "lockstep.json")
    subprocess.run([os.path.join(build, "bin", "bench_checkpoint"), "--rounds", "1", "--folder", folder,
                    "--tensors", str(TENSORS), "--elements", str(ELEMENTS), "--json", path],
                   check=True, stdout=subprocess.DEVNULL)
    with open(path, encoding="utf-8") as file:
        for what, values in json.load(file)["seconds"].items():
            times.setdefault("Lockstep " + what, []).extend(values)


def pytorch(torch, state, folder, times):
    path = os.path.join(folder, "model.pt")

    def synced():
        with open(path, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    for what, call in [("torch.save", lambda: torch.save(state, path)),
                       ("torch.save and fsync", synced),
                       ("torch.load", lambda: torch.load(path, weights_only=True)),
                       ("torch.load, mmap", lambda: torch.load(path, weights_only=True, mmap=True))]:
        if "save" in what and os.path.exists(path):
            os.remove(path)
        times.setdefault(what, []).append(seconds_of(call)[0])
    os.remove(path)


def safetensors(torch_part, state, folder, times):
    path = os.path.join(folder, "model.safetensors")
    times.setdefault("safetensors save_file", []).append(
        seconds_of(lambda: torch_part.save_file(state, path))[0])
    times.setdefault("safetensors load_file", []).append(
        seconds_of(lambda: torch_part.load_file(path))[0])
    os.remove(path)


def main():
    build = sys.argv[1]
    base = sys.argv[2] if len(sys.argv) > 2 else build
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    torch = parts = state = None
    try:
        import torch
        torch.manual_seed(0)
        state = {f"layers.{i}.weight": torch.randn(ELEMENTS) for i in range(TENSORS)}
        import safetensors.torch as parts
    except ImportError as error:
        print(f"left out: {error}", file=sys.stderr)
    folder = tempfile.mkdtemp(dir=base)
    times = {}
    try:
        for _ in range(rounds):
            lockstep(build, folder, times)
            if torch is not None:
                pytorch(torch, state, folder, times)
            if parts is not None:
                safetensors(parts, state, folder, times)
    finally:
        shutil.rmtree(folder)
    median = {what: statistics.median(values) for what, values in times.items()}
    size = TENSORS * ELEMENTS * 4
    print(f"{TENSORS} tensors of {ELEMENTS} f32, {size >> 20} MiB, medians of {rounds} rounds\n")
    for what, value in median.items():
        print(f"{what:<45} {1e3 * value:9.2f} ms {size / value / 1e9:8.2f} GB/s")
    print()

    def ratio(text, over, under, goal):
        if over in median and under in median:
            print(f"{text:<55} {median[over] / median[under]:7.2f}   goal {goal}")

    saving = "Lockstep save_checkpoint"
    ratio("saving, not synced: its speed over torch.save's", "torch.save",
          saving + ", not synced", "2 and more")
    ratio("saving: its speed over torch.save and fsync's", "torch.save and fsync", saving, "none")
    ratio("saving: its speed over write and fsync's", "Lockstep write and fsync", saving,
          "0.8 and more")
    for how in ("read_state_dict, mmap", "the same, data not verified"):
        ratio(f"loading ({how}): over torch.load's", "torch.load", "Lockstep " + how, "10 and more")
    ratio("asynchronous saving: the stop over a memory copy", "Lockstep AsyncCheckpointer::save",
          "Lockstep memory copy", "about 1")


if __name__ == "__main__":
    main()
