"""Takes away one wait at a time and sees whether some test under the emulator misses it.

    remove_waits.py BUILD_FOLDER [barriers|events] [PART_OF_A_FILE'S_NAME]

BUILD_FOLDER is one of the preset simt, with its tests built. Barriers within kernels are left out by
the emulator while a test runs (SIMT_WITHOUT); waits of streams and of the host are taken out of a copy
of the sources in BUILD_FOLDER/without, which is built again for each. Prints who missed each one, and
fails where nobody missed one that KNOWN does not explain, or where KNOWN has more than 5 % of all.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["kernels/cuda/*.cu", "kernels/cuda/*.cuh", "comm/cuda_*.cpp"]
BARRIER = re.compile(r"\b__syncthreads\(")
EVENT = re.compile(r"(\b[\w.]+(?:->\w+|\(\))*)(?:\.|->)(wait\((?!lock)|synchronize\()(.*)\);$")
# A part of the line, and why no test can miss it.
KNOWN = {}
MOST_KNOWN = 0.05


def places(pattern, part):
    for folder in FOLDERS:
        for path in sorted(ROOT.glob(folder)):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                name = str(path.relative_to(ROOT))
                if part in name and pattern.search(line.split("//")[0].rstrip()):
                    yield name, number, line.strip()


def tests_of(build):
    """The programs, those that cover most kernels first."""
    first = ["simt_kernels_test", "simt_places_test", "simt_norms_test", "simt_attention_test"]
    all_tests = {path.name: path for path in (build / "bin").glob("simt_*_test") if path.is_file()}
    del all_tests["simt_emulator_test"]
    return [all_tests.pop(name) for name in first] + [all_tests[name] for name in sorted(all_tests)]


def first_to_fail(build, without=None):
    environment = dict(os.environ, **({"SIMT_WITHOUT": without} if without else {}))
    for test in tests_of(build):
        try:
            done = subprocess.run([test, "--gtest_brief=1", "--gtest_fail_fast"], env=environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace", timeout=600, check=False)
        except subprocess.TimeoutExpired:
            return f"{test.name} (it did not end)"
        if done.returncode != 0:
            failed = re.search(r"\[  FAILED  \] (\S+)", done.stdout)
            return f"{test.name} {failed.group(1) if failed else 'ended with ' + str(done.returncode)}"
    return None


def without_event(build, name, number):
    """Who misses a wait that is taken out of a copy of the sources, or why that does not build."""
    copy, tree = build / "without" / "source", build / "without" / "build"
    subprocess.run(["rsync", "-a", "--delete", "--exclude=/build", "--exclude=/.git", f"{ROOT}/", copy],
                   check=True)
    if not (tree / "build.ninja").exists():
        subprocess.run(["cmake", "--preset", "simt", "-S", copy, "-B", tree], cwd=copy, check=True,
                       stdout=subprocess.DEVNULL)
    lines = (copy / name).read_text(encoding="utf-8").splitlines()
    found = EVENT.search(lines[number - 1].split("//")[0].rstrip())
    kept = found.group(3) if found.group(2) == "wait(" else found.group(1)
    lines[number - 1] = lines[number - 1][:found.start()] + f"static_cast<void>({kept});"
    (copy / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    made = subprocess.run(["cmake", "--build", tree, "--target", "simt_tests"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if made.returncode != 0:
        sys.exit(f"{name}:{number} does not build without it:\n{made.stdout[-2000:]}")
    return first_to_fail(tree)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    what = sys.argv[2] if len(sys.argv) > 2 else "both"
    part = sys.argv[3] if len(sys.argv) > 3 else ""
    if shutil.which("rsync") is None and what != "barriers":
        sys.exit("want rsync, which copies the sources")
    kinds = []
    if what != "events":
        kinds.append((BARRIER, lambda name, number: first_to_fail(build, f"/{name}:{number}")))
    if what != "barriers":
        kinds.append((EVENT, lambda name, number: without_event(build, name, number)))
    total, known, missing = 0, 0, []
    for pattern, run in kinds:
        for name, number, line in places(pattern, part):
            who = run(name, number)
            reason = next((why for text, why in KNOWN.items() if text in f"{name}: {line}"), None)
            print(f"{name}:{number} {line}\n    " + (f"missed by {who}" if who else
                                                     f"missed by nobody: {reason or 'why?'}"), flush=True)
            total += 1
            known += who is None and reason is not None
            if who is None and reason is None:
                missing.append(f"{name}:{number}")
    print(f"{total} waits, {known} explained, {len(missing)} that no test misses")
    sys.exit(1 if missing or known > MOST_KNOWN * total else 0)


if __name__ == "__main__":
    main()
