"""Reads what ptxas said of each kernel: none may spill registers or keep a stack frame, but those below.

    check_ptxas.py FOLDER    a folder below which third_party/keep_ptxas_report.sh left OBJECT.ptxas
"""
import pathlib
import re
import subprocess
import sys

# Kernels that may have a stack frame: a regular expression of the readable name, and why.
ALLOWED = [
    (r"kernel<.*Body<lockstep::kernels::(Sin|Cos),",
     "an argument of 2^17 and more is reduced by a table of 2/pi that is indexed at run time"),
]


def kernels(report):
    """Yields (architecture, mangled name, stack, spill stores, spill loads)."""
    name = architecture = None
    for line in report.splitlines():
        if found := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
            name, architecture = found.groups()
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes", line):
            yield architecture, name, *map(int, found.groups())


def readable(names):
    shown = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True,
                           check=True)
    return dict(zip(names, shown.stdout.splitlines()))


def main():
    reports = sorted(pathlib.Path(sys.argv[1]).rglob("*.ptxas"))
    rows = [row for report in reports for row in kernels(report.read_text())]
    if not rows:
        sys.exit(f"want reports of ptxas below {sys.argv[1]}, got {len(reports)} files and no kernel")
    names = readable(sorted({row[1] for row in rows}))
    bad, excused, used = [], 0, set()
    for architecture, name, stack, stores, loads in rows:
        if stack == stores == loads == 0:
            continue
        reasons = [i for i, (pattern, _) in enumerate(ALLOWED) if re.search(pattern, names[name])]
        used.update(reasons)
        excused += bool(reasons)
        if not reasons:
            bad.append(f"{architecture}: {stack} bytes of stack, {stores} spilled, {loads} loaded again: "
                       f"{names[name]}")
    print(f"{len(rows)} kernels in {len(reports)} files, {excused} with a stack frame for a reason")
    bad += [f"no kernel needs this exception any more: {pattern}"
            for i, (pattern, _) in enumerate(ALLOWED) if i not in used]
    for line in bad:
        print(line)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
