"""Counts the lines of kernels/ and comm/ that only one side runs: the emulator, or CUDA itself.

    count_lines.py SOURCE_FOLDER

Those are the files that the emulator's build leaves out for bodies of its own (NVIDIA's libraries), and
what stands between #if and #endif by EMULATED or CUDA_ONLY below. Blank lines and comments do not
count. Fails above 10 % of all lines of both folders.
"""

import pathlib
import re
import sys

LIBRARIES = [
    "comm/nccl_group.cpp",
    "kernels/cuda/blas.cu",
    "kernels/cuda/blas_lt.cuh",
    "kernels/cuda/dnn.cu",
    "kernels/cuda/dnn_graph.cuh",
]
EMULATED = "SIMT_STATIC_SHARED"
CUDA_ONLY = "__CUDACC__"
MOST = 0.10


def code_lines(text):
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("//"):
            yield line


def count(text):
    """(all lines, those of the emulator alone, those of CUDA alone)"""
    counts = {"all": 0, "emulated": 0, "cuda": 0}
    open_ifs = []
    for line in code_lines(text):
        counts["all"] += 1
        if re.match(r"#\s*if", line):
            negative = re.match(r"#\s*ifndef|#\s*if\s*!", line) is not None
            side = "emulated" if EMULATED in line else "cuda" if CUDA_ONLY in line else None
            open_ifs.append((side, negative))
        elif re.match(r"#\s*else", line):
            side, negative = open_ifs.pop()
            open_ifs.append((side, not negative))
        elif re.match(r"#\s*endif", line):
            open_ifs.pop()
        else:
            for side, negative in open_ifs:
                if side is not None:
                    other = {"emulated": "cuda", "cuda": "emulated"}[side]
                    counts[other if negative else side] += 1
                    break
    return counts


def main():
    root = pathlib.Path(sys.argv[1])
    total = {"all": 0, "emulated": 0, "cuda": 0}
    for folder in ("kernels", "comm"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cuh", ".cpp", ".cu"):
                continue
            counts = count(path.read_text(encoding="utf-8"))
            if str(path.relative_to(root)) in LIBRARIES:
                counts["cuda"], counts["emulated"] = counts["all"], 0
            for key, value in counts.items():
                total[key] += value
            if counts["emulated"] or counts["cuda"]:
                print(f"{path.relative_to(root)}: emulator alone {counts['emulated']}, "
                      f"CUDA alone {counts['cuda']}, of {counts['all']}")
    part = (total["emulated"] + total["cuda"]) / total["all"]
    print(f"kernels/ and comm/: emulator alone {total['emulated']}, CUDA alone {total['cuda']}, "
          f"of {total['all']}: {100 * part:.1f} %, want {100 * MOST:.0f} % at most")
    sys.exit(0 if part <= MOST else 1)


if __name__ == "__main__":
    main()
