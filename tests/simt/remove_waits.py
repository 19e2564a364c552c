"""Takes away one barrier or wait at a time and sees whether some test misses it.

    remove_waits.py BUILD_FOLDER [both|barriers|events] [PART_OF_FILE:LINE ...]

BUILD_FOLDER has the tests of the emulator (simt_tests) built in it. Barriers within kernels are left out
by the emulator while a test runs (SIMT_WITHOUT). What waits for a stream, an event, a collective or what
another rank does with a device is made optional, by the same variable, in a copy of the sources in
BUILD_FOLDER/without, which is built by the preset simt. What waits for threads, processes and sockets of
the host alone is left as it is, and headers are not looked at.

A collective whose wait is away is still made. Nothing waits where a Work ends: the group's thread runs it
beside what comes next, on buffers that may be gone by then. A test that ends its program, or never ends,
has missed the wait as well.

Runs the emulator's programs and, for waits, those for ranks on the CPU (HOST_TESTS), until one fails that
passes with everything in place. Prints who missed each one, and fails where nobody missed one that KNOWN
does not explain, or where KNOWN has more than 5 % of all. All of it takes hours.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["kernels", "core", "comm", "nn"]
# Where ranks wait for each other by memory and sockets of the host alone.
HOST_ONLY = re.compile(r"comm/(pair_streams|ring|shared_\w+|tcp_\w+)\.cpp")
BARRIER = {re.compile(r"\b__syncthreads\("): None}
# What waits, and what makes it ask first.
CALL = (r"(?:[\w:]+(?:\([^()]*\))?(?:\.|->))*(?:cuda::)?"
        r"(?:wait|wait_for|wait_for_before|wait_for_word|synchronize|drain|await_\w+)\((?!lock)|"
        r"LOCKSTEP_CUDA_CHECK\(cuda(?:StreamSynchronize|StreamWaitEvent|EventSynchronize)\(")
WAIT = {
    # Of a call that may stand lines above, and that is still made.
    re.compile(r"\.wait\(\);$"): r" >> Wait{PLACE};",
    re.compile(rf"^(\s*(?:(?:if|for) \(.*\) )?)(?={CALL})"): r"\1if (!wait_is_away(PLACE)) ",
    re.compile(r"(?=!(?:\w+(?:\.|->))?await_\w+\()"): r"!wait_is_away(PLACE) && ",
    re.compile(r"\bwhile \((?=.*(?:!(?:\w+\.)?(?:done|has_passed)\(|== ncclInProgress))"):
        r"while (!wait_is_away(PLACE) && ",
}
ASKS = """#include <cstdlib>
#include <string>
static bool wait_is_away(const std::string& place) {
  static const char* without = std::getenv("SIMT_WITHOUT");
  return without != nullptr && place == without;
}
namespace {
struct Wait {
  const char* place;
};
template <class Work>
void operator>>(Work&& work, Wait wait) {
  if (!wait_is_away(wait.place)) work.wait();
}
}  // namespace
"""
# Programs for ranks on the CPU alone, beside those of the emulator.
HOST_TESTS = ["comm_split_test", "nn_checkpoint_async_test", "nn_checkpoint_group_test",
              "nn_checkpoint_shards_test", "nn_collectives_test", "nn_comm_hooks_test", "nn_data_parallel_test",
              "nn_grad_scaler_test", "nn_join_test", "nn_sharded_optimizer_test", "nn_stop_signal_test",
              "nn_sync_batch_norm_test"]
# A part of the line, and why no test can miss it.
KNOWN = {
    "kernels/cpu/onednn.cpp: stream.wait();":
        "oneDNN's documentation asks for it, but on a CPU with OpenMP a primitive has ended when it returns",
}
MOST_KNOWN = 0.05
# That a program may take: without a wait it may never end.
SECONDS = 300


def places(patterns, parts):
    """Name, number, text and pattern of each line in which one of the patterns is found."""
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.c*")):
        name = str(path.relative_to(ROOT))
        before = ""
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code = line.split("//")[0].rstrip()
            found = next((pattern for pattern in patterns if pattern.search(code)), None)
            in_call = before.endswith(("(", ","))
            before = code
            wanted = not parts or any(part in f"{name}:{number}" for part in parts)
            if found and wanted and not in_call and not HOST_ONLY.fullmatch(name):
                yield name, number, line, found


def tests_of(build, first):
    """The programs, those that cover most of these waits first."""
    all_tests = {path.name: path for path in (build / "tests" / "simt").glob("simt_*_test")}
    if not all_tests:
        sys.exit(f"want a folder in which simt_tests was built, and there are no tests in {build}/tests/simt")
    del all_tests["simt_emulator_test"]
    chosen = [all_tests.pop(f"simt_{name}_test") for name in first]
    return chosen + [all_tests[name] for name in sorted(all_tests)]


def run(test, test_filter, environment):
    """Its status, None where it did not end, and what it says of its tests."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", **environment)
    with subprocess.Popen([test, "--gtest_fail_fast", f"--gtest_filter={test_filter}"], env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace",
                          start_new_session=True) as process:
        ended = True
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            ended = False
        try:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that a test has started
        except ProcessLookupError:
            pass
        if ended:
            return process.returncode, output
        return None, process.communicate()[0]


def first_to_fail(tests, name, number):
    # As CMakeLists.txt has them: what wants the cache of blocks is run with it alone, some with and without.
    cached = [test for test in tests if re.search("streams|cuda_memory|graph", test.name)]
    runs = [(test, "*", {"SIMT_CACHE": "1"}) for test in cached]
    runs += [(test, "-CachedMemory*", {}) for test in tests]
    # Those of the same folder before all others, and of these those of the same name.
    folder, *_ = pathlib.Path(name).parts
    words = {pathlib.Path(name).stem, pathlib.Path(name).parent.name} - {"cuda", folder}
    runs.sort(key=lambda one: (not one[0].name.startswith(folder), not any(word in one[0].name for word in words)))
    for test, test_filter, environment in runs:
        status, output = run(test, test_filter, dict(environment, SIMT_WITHOUT=f"/{name}:{number}"))
        if status == 0:
            continue
        failed = re.findall(r"\[  FAILED  \] ([^\s,]+)", output)[:1]
        # The last that began, where that ended the program, or did not end.
        failed = (failed or re.findall(r"\[ RUN      \] (\S+)", output) or ["*"])[-1]
        if run(test, failed, environment)[0] != 0:
            sys.exit(f"want tests that pass: {failed} of {test.name} fails with all waits in place")
        again = status is None and run(test, failed, dict(environment, SIMT_WITHOUT=f"/{name}:{number}"))
        if again and again[0] == 0:
            sys.exit(f"want a machine on which {test.name} ends in {SECONDS} s")
        return f"{test.name} {failed}" + (" (did not end)" if status is None else "")
    return None


def with_optional_waits(build):
    """Builds a copy of the sources in which each wait asks SIMT_WITHOUT first. Returns its folder."""
    copy, tree = build / "without" / "source", build / "without" / "build"
    texts = {}
    for name, number, line, pattern in places(WAIT, []):
        text = texts.setdefault(name, (ROOT / name).read_text(encoding="utf-8").splitlines())
        code = line.split("//")[0].rstrip()
        text[number - 1] = pattern.sub(WAIT[pattern].replace("PLACE", f'"/{name}:{number}"'), code, count=1)
    copy.mkdir(parents=True, exist_ok=True)
    subprocess.run(["rsync", "-a", "--delete", "--exclude=/build", "--exclude=/.git",
                    *(f"--exclude=/{name}" for name in texts), f"{ROOT}/", copy], check=True)
    for name, lines in texts.items():
        text = ASKS + "\n".join(lines) + "\n"
        if not (copy / name).exists() or (copy / name).read_text(encoding="utf-8") != text:
            (copy / name).write_text(text, encoding="utf-8")
    for command in (["cmake", "--preset", "simt", "-S", copy, "-B", tree],
                    ["cmake", "--build", tree, "--target", "simt_tests", *HOST_TESTS]):
        made = subprocess.run(command, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)
        if made.returncode != 0:
            sys.exit(f"the copy does not build:\n{made.stdout[-2000:]}")
    return tree


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    what = sys.argv[2] if len(sys.argv) > 2 else "both"
    parts = sys.argv[3:]
    if shutil.which("rsync") is None and what != "barriers":
        sys.exit("want rsync, which copies the sources")
    kinds = []
    if what != "events":
        kinds.append((BARRIER, tests_of(build, ["kernels", "places", "norms", "attention"])))
    if what != "barriers":
        copy = with_optional_waits(build)
        tests = tests_of(copy, ["streams", "cuda_peers", "collectives_loss", "collectives", "nccl_group", "nccl",
                                "data_parallel"])
        kinds.append((WAIT, tests + [copy / "tests" / name for name in HOST_TESTS]))
    total, known, missing = 0, 0, []
    for patterns, tests in kinds:
        for name, number, line, _ in places(patterns, parts):
            line = line.strip()
            who = first_to_fail(tests, name, number)
            reason = next((why for text, why in KNOWN.items() if text in f"{name}: {line}"), None)
            print(f"{name}:{number} {line}\n    " + (f"missed by {who}" if who else
                                                     f"missed by nobody: {reason or 'why?'}"), flush=True)
            total += 1
            known += who is None and reason is not None
            if who is None and reason is None:
                missing.append(f"{name}:{number}")
    print(f"{total} waits, {known} explained, {len(missing)} that no test misses")
    sys.exit(1 if missing or (known > MOST_KNOWN * total and not parts) else 0)


if __name__ == "__main__":
    main()
