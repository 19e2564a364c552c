"""Proves that what meets in a block (barriers.cu) is free of races, and that its barriers are needed.

    prove_barriers.py BUILD_FOLDER [FUNCTION]

Compiles barriers.cu to PTX and gives it to sentryward, which proves a kernel free of races in every
schedule or shows two accesses that nothing orders: once as it is, and once without each barrier, where a
race must be found but for the barriers in MAY_GO. sentryward is installed from PyPI into BUILD_FOLDER.
Where there is no nvcc it says so and ends well.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERIFIER = "sentryward==0.1.1"
BLOCKS = {"fold_rows": [32, 8, 1]}  # all others: 256 threads in a row
# Barriers of the PTX, by their place, that only keep a call from the one before it or behind it, where
# there is none.
MAY_GO = {("block_reduce", 0), ("scan_block", 0), ("fold_rows", 3)}
BARRIER = re.compile(r"\t(?:bar|barrier)\.(?:cta\.)?sync[^;]*;")


def find_nvcc():
    found = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return found if os.access(found, os.X_OK) else None


def install(folder):
    program = folder / "bin" / "sentryward"
    if not program.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "pip", "install", "-q", VERIFIER], check=True)
    return program


def verdict(program, work, ptx, entry):
    launch = {"grid_dim": [1, 1, 1], "block_dim": BLOCKS.get(entry, [256, 1, 1]),
              "cluster_dim": [1, 1, 1], "dynamic_shared_bytes": 0}
    wanted = {"schema": "spverify.kernel-input/v1", "entry": entry, "launch": launch}
    (work / "input.json").write_text(json.dumps(wanted), encoding="utf-8")
    (work / "kernel.ptx").write_text(ptx, encoding="utf-8")
    done = subprocess.run([program, work / "kernel.ptx", "--input", work / "input.json"],
                          stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["result"]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    nvcc = find_nvcc()
    if nvcc is None:
        print("there is no nvcc: nothing was proved")
        return
    work = build / "barriers"
    work.mkdir(parents=True, exist_ok=True)
    program = install(work / "venv")
    source = pathlib.Path(__file__).with_name("barriers.cu")
    subprocess.run([nvcc, "-arch=compute_90", "-ptx", "-std=c++20", "-O3", "-DNDEBUG",
                    "-DLOCKSTEP_WITH_CUDA", "--expt-relaxed-constexpr", "-diag-suppress=177",
                    f"-I{build / 'include'}", source, "-o", work / "barriers.ptx"], check=True)
    ptx = (work / "barriers.ptx").read_text(encoding="utf-8")
    wrong = 0
    entries = re.findall(r'extern "C" __global__ .*?(\w+)\(const', source.read_text(encoding="utf-8"), re.DOTALL)
    for entry in sys.argv[2:] or entries:
        begin = ptx.index(f".entry {entry}(")
        end = ptx.find(".entry ", begin + 1)
        barriers = list(BARRIER.finditer(ptx, begin, end if end > 0 else len(ptx)))
        as_it_is = verdict(program, work, ptx, entry)
        print(f"{entry}: {as_it_is} with its {len(barriers)} barriers", flush=True)
        wrong += as_it_is != "race_free"
        for i, barrier in enumerate(barriers):
            without = verdict(program, work, ptx[:barrier.start()] + ptx[barrier.end():], entry)
            may_go = (entry, i) in MAY_GO
            print(f"  {without} without barrier {i}{', which may go here' if may_go else ''}", flush=True)
            wrong += without != ("race_free" if may_go else "potential_race")
    if wrong:
        sys.exit(f"{wrong} of these are not as they should be")


if __name__ == "__main__":
    main()
