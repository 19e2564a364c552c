#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that Lockstep is built with, as far as they are missing.
#
#   third_party/install.sh build    compiler, CMake, Ninja, ccache, libraries
#   third_party/install.sh data     Fashion-MNIST and a list of words, for the examples that train on them
#   third_party/install.sh simt     Boost.Context, by which the tests run CUDA kernels on a CPU
#   third_party/install.sh check    clang-format and clang-tidy, of the versions that CONTRIBUTING.md names,
#                                   clang with libFuzzer, venv for a verifier from PyPI, and rsync
#
# Groups may be given together; without one it is `build`. Where there is no apt it says so and ends
# well: CMake then takes what the system has, and fetches or names the rest.
set -euo pipefail

build=(g++ make cmake ninja-build ccache libabsl-dev libdnnl-dev libxxhash-dev nlohmann-json3-dev
       zlib1g-dev libssl-dev libgtest-dev libgmock-dev libbenchmark-dev)
build+=(ocl-icd-opencl-dev)  # libdnnl-dev's CMake files look for OpenCL, its package asks for none
build+=(python3-xxhash)  # a test reads checkpoints by another program
build+=(iproute2)  # tests make hosts of network namespaces by ip and tc
data=(dataset-fashion-mnist miscfiles)
simt=(libboost-context-dev)
check=(python3-venv rsync clang-format-14 clang-tidy-16 clang-16 libclang-rt-16-dev libomp-16-dev)

wanted=()
for group in "${@:-build}"; do
  case $group in
    build) wanted+=("${build[@]}") ;;
    data) wanted+=("${data[@]}") ;;
    simt) wanted+=("${simt[@]}") ;;
    check) wanted+=("${check[@]}") ;;
    *)
      echo "install.sh: want build, data, simt or check, got '$group'" >&2
      exit 2
      ;;
  esac
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "set-up: this system has no apt; CMake looks for what Lockstep needs, and fetches the rest"
  exit 0
fi

missing=()
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null || true)
for package in "${wanted[@]}"; do
  grep -qx "installed $package" <<<"$installed" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "set-up: these packages are missing and only root can install them: ${missing[*]}" >&2
    echo "set-up: run as root: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "set-up: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=5 \
    -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1
}
# One broken source among several fails the update; whether that matters, the install shows.
apt update || true
if ! apt install --no-install-recommends "${missing[@]}"; then
  cat "$log" >&2
  echo "set-up: apt could not install them; its own words are above" >&2
  exit 1
fi
