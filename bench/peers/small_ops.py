"""Ops on 8 numbers: Lockstep's bench_kernels and PyTorch from C++ (torch_small_ops.cpp), in turns,
one thread each, and the ratio of their medians.

    small_ops.py BUILD_FOLDER [ROUNDS]

Wants the Python that has PyTorch, whose headers it compiles against with c++; without one it prints
Lockstep's numbers alone.
"""

import json
import os
import statistics
import subprocess
import sys


def build_peer(here, build):
    """The program's path, or None."""
    try:
        import torch
        from torch.utils import cpp_extension
    except ImportError as error:
        print(f"PyTorch is left out: {error}", file=sys.stderr)
        return None
    includes = [f"-isystem{path}" for path in cpp_extension.include_paths()]
    libraries = os.path.join(os.path.dirname(torch.__file__), "lib")
    program = os.path.join(build, "peers", "torch_small_ops")
    os.makedirs(os.path.dirname(program), exist_ok=True)
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    subprocess.run(["c++", "-O2", "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", *includes,
                    os.path.join(here, "torch_small_ops.cpp"), "-o", program, f"-L{libraries}",
                    f"-Wl,-rpath,{libraries}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"],
                   check=True)
    return program


def run_lockstep(build, times):
    path = os.path.join(build, "peers", "small_ops.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    subprocess.run(
        [os.path.join(build, "bin", "bench_kernels"), "--benchmark_filter=^small/",
         f"--benchmark_out={path}", "--benchmark_out_format=json", "--benchmark_min_time=0.05",
         "--benchmark_repetitions=3"],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)["benchmarks"]
    for row in rows:
        if row["run_type"] == "iteration":
            times.setdefault(row["run_name"], []).append(row["real_time"])


def run_peer(program, times):
    for line in subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
        name, nanoseconds = line.split()
        times.setdefault(name, []).append(float(nanoseconds))


def main():
    build = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    os.environ["OMP_NUM_THREADS"] = "1"
    program = build_peer(os.path.dirname(os.path.abspath(__file__)), build)
    ours, theirs = {}, {}
    for _ in range(rounds):
        run_lockstep(build, ours)
        if program:
            run_peer(program, theirs)
    print("| op on 8 numbers, ns | Lockstep | PyTorch | ratio |\n| --- | ---: | ---: | ---: |")
    for name, values in ours.items():
        own = statistics.median(values)
        peer = statistics.median(theirs[name]) if name in theirs else None
        cells = [name, f"{own:.0f}"] + ([f"{peer:.0f}", f"{own / peer:.2f}"] if peer else ["", ""])
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
