"""Takes away one wait at a time and sees whether some test under the emulator misses it.

    remove_waits.py BUILD_FOLDER [barriers|events] [PART_OF_A_FILE'S_NAME]

BUILD_FOLDER has the tests of the emulator (simt_tests) built in it. Barriers within kernels are left out
by the emulator while a test runs (SIMT_WITHOUT). Waits of streams, of collectives and of the host are
made optional, by the same variable, in a copy of the sources in BUILD_FOLDER/without, which is built
once by the preset simt. Prints who missed each one, and fails where nobody missed one that KNOWN does
not explain, or where KNOWN has more than 5 % of all.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["kernels/cuda/*.cu", "kernels/cuda/*.cuh", "comm/cuda_*.cpp", "comm/nccl_transport.cpp",
           "comm/collective.cpp", "comm/communicator.cpp", "nn/*.cpp"]
BARRIER = re.compile(r"\b__syncthreads\(")
EVENT = re.compile(
    r"(\b[\w.]+(?:->\w+|\(\))*(?:\.|->)(?:wait(?:_for_before)?\((?!lock)|synchronize\()|"
    r"\bcurrent_stream\([^()]*\)\.wait\(|(?<![.>\w])(?:wait_for|synchronize)\(|"
    r"cuda::wait_for_word\().*\);$")
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


def tests_of(build, first):
    """The programs, those that cover most of these waits first."""
    all_tests = {path.name: path for path in (build / "tests" / "simt").glob("simt_*_test")}
    if not all_tests:
        sys.exit(f"want a folder in which simt_tests was built, and there are no tests in {build}/tests/simt")
    del all_tests["simt_emulator_test"]
    chosen = [all_tests.pop(f"simt_{name}_test") for name in first]
    return chosen + [all_tests[name] for name in sorted(all_tests)]


def run(test, test_filter, environment):
    environment = dict(os.environ, OMP_NUM_THREADS="1", **environment)
    return subprocess.run([test, "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={test_filter}"],
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=600, check=False)


def first_to_fail(tests, without):
    # As CMakeLists.txt has them: what wants the cache of blocks is run with it alone, some with and without.
    runs = [(test, "*", {"SIMT_CACHE": "1"}) for test in tests if re.search("streams|cuda_memory|graph", test.name)]
    runs += [(test, "-CachedMemory*", {}) for test in tests]
    for test, test_filter, environment in runs:
        try:
            done = run(test, test_filter, dict(environment, SIMT_WITHOUT=without))
        except subprocess.TimeoutExpired:
            return f"{test.name} (it did not end)"
        if done.returncode == 0:
            continue
        failed = re.search(r"\[  FAILED  \] ([^\s,]+)", done.stdout)
        if failed is None:
            return f"{test.name} ended with {done.returncode}"
        if run(test, failed.group(1), environment).returncode != 0:
            sys.exit(f"want tests that pass: {failed.group(1)} of {test.name} fails with all waits in place")
        return f"{test.name} {failed.group(1)}"
    return None


def with_optional_waits(build):
    """Builds a copy of the sources in which each wait asks SIMT_WITHOUT first. Returns its folder."""
    copy, tree = build / "without" / "source", build / "without" / "build"
    copy.mkdir(parents=True, exist_ok=True)
    subprocess.run(["rsync", "-a", "--delete", "--exclude=/build", "--exclude=/.git", f"{ROOT}/", copy],
                   check=True)
    lines = {}
    for name, number, _ in places(EVENT, ""):
        text = lines.setdefault(name, (copy / name).read_text(encoding="utf-8").splitlines())
        at = EVENT.search(text[number - 1].split("//")[0].rstrip()).start()
        line = text[number - 1]
        text[number - 1] = f'{line[:at]}if (!wait_is_away("/{name}:{number}")) {line[at:]}'
    for name, text in lines.items():
        asks = ["#include <cstdlib>", "#include <string>",
                "static bool wait_is_away(const std::string& place) {",
                '  static const char* without = std::getenv("SIMT_WITHOUT");',
                "  return without != nullptr && place == without;", "}"]
        (copy / name).write_text("\n".join(asks + text) + "\n", encoding="utf-8")
    for command in (["cmake", "--preset", "simt", "-S", copy, "-B", tree],
                    ["cmake", "--build", tree, "--target", "simt_tests"]):
        made = subprocess.run(command, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)
        if made.returncode != 0:
            sys.exit(f"the copy does not build:\n{made.stdout[-2000:]}")
    return tree


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    what = sys.argv[2] if len(sys.argv) > 2 else "both"
    part = sys.argv[3] if len(sys.argv) > 3 else ""
    if shutil.which("rsync") is None and what != "barriers":
        sys.exit("want rsync, which copies the sources")
    kinds = []
    if what != "events":
        kinds.append((BARRIER, tests_of(build, ["kernels", "places", "norms", "attention"])))
    if what != "barriers":
        kinds.append((EVENT, tests_of(with_optional_waits(build),
                                      ["streams", "collectives", "nccl", "data_parallel"])))
    total, known, missing = 0, 0, []
    for pattern, tests in kinds:
        for name, number, line in places(pattern, part):
            who = first_to_fail(tests, f"/{name}:{number}")
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
