#!/bin/sh
# Prints Lockstep's all_reduce beside Open MPI's and gloo's, measured in turns on this machine.
#
#   run.sh BUILD_FOLDER [RANKS] [FIRST] [LAST] [FACTOR]
#
# Sizes are bytes. Peers that are not installed are installed with apt where that is possible, PyTorch
# from PyPI into an environment of its own where apt has none, and left out otherwise. Results stay in
# BUILD_FOLDER/peers/RANKS, with the table in table.txt.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
build=${1:?usage: run.sh BUILD_FOLDER [RANKS] [FIRST] [LAST] [FACTOR]}
ranks=${2:-2}
first=${3:-4}
last=${4:-268435456}
factor=${5:-4}
rounds=${LOCKSTEP_PEER_ROUNDS:-5}
out=$build/peers/$ranks
venv=$build/peers/venv
mkdir -p "$out"

have() { command -v "$1" >/dev/null 2>&1; }

# The first python3 that has PyTorch: apt's is not always the first in PATH.
torch_python() {
  for one in python3 /usr/bin/python3 "$venv/bin/python3"; do
    "$one" -c 'import torch' 2>/dev/null && echo "$one" && return
  done
}

missing=
have mpirun && have mpicxx || missing="libopenmpi-dev openmpi-bin"
[ -n "$(torch_python)" ] || missing="$missing python3-torch"
if [ -n "$missing" ] && have apt-get && [ "$(id -u)" = 0 ]; then
  echo "installing $missing" >&2
  # shellcheck disable=SC2086 -- a list of packages
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q $missing >"$out/apt.log" 2>&1 ||
    echo "apt-get could not install them: see $out/apt.log" >&2
fi

if [ -z "$(torch_python)" ] && [ "${LOCKSTEP_PEER_PYPI:-1}" = 1 ]; then
  echo "installing torch from PyPI into $venv" >&2
  { python3 -m venv "$venv" && "$venv/bin/pip" install -q torch numpy; } >"$out/pip.log" 2>&1 ||
    echo "pip could not install it: see $out/pip.log" >&2
fi

mpi=
if have mpirun && have mpicxx; then
  mpicxx -O2 -std=c++17 "$here/mpi_allreduce.cpp" -o "$out/mpi_allreduce" && mpi=1
fi
gloo=$(torch_python)

OMPI_ALLOW_RUN_AS_ROOT=1
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMP_NUM_THREADS

# In turns, so that a machine that slows down slows all of them.
rm -f "$out"/*.txt "$out"/*.json
round=0
while [ "$round" -lt "$rounds" ]; do
  "$build/bin/bench_allreduce" -n "$ranks" -b "$first" -e "$last" -f "$factor" -c 1 \
    --transport shm --json "$out/shm.$round.json" >"$out/shm.log"
  "$build/bin/bench_allreduce" -n "$ranks" -b "$first" -e "$last" -f "$factor" -c 1 -R 0 \
    --transport shm --json "$out/plain.$round.json" >"$out/plain.log"
  "$build/bin/bench_allreduce" -n "$ranks" -b "$first" -e "$last" -f "$factor" -c 1 \
    --transport tcp --json "$out/tcp.$round.json" >"$out/tcp.log"
  [ -z "$mpi" ] || mpirun --oversubscribe -n "$ranks" "$out/mpi_allreduce" "$first" "$last" "$factor" \
    >"$out/mpi.$round.txt"
  [ -z "$gloo" ] || "$gloo" "$here/gloo_allreduce.py" "$ranks" "$first" "$last" "$factor" \
    >"$out/gloo.$round.txt" 2>"$out/gloo.log"
  round=$((round + 1))
done
python3 "$here/table.py" "$out" "$ranks" | tee "$out/table.txt"
