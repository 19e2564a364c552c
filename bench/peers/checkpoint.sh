#!/bin/sh
# Saves and loads with Lockstep, PyTorch and safetensors, in turns (checkpoint.py).
#
#   checkpoint.sh BUILD_FOLDER [FOLDER_FOR_FILES] [ROUNDS]
#
# What is missing is installed into a Python environment in the build folder where that is possible,
# and left out otherwise. LOCKSTEP_PEER_PYTHON names a Python that has both.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
build=${1:?usage: checkpoint.sh BUILD_FOLDER [FOLDER_FOR_FILES] [ROUNDS]}
own=$build/peers/python

has_both() { [ -n "$1" ] && "$1" -c 'import torch, safetensors.torch' 2>/dev/null; }

find_python() {
  for one in "${LOCKSTEP_PEER_PYTHON:-}" "$own/bin/python" python3 /usr/bin/python3; do
    has_both "$one" && echo "$one" && return
  done
}

python=$(find_python || true)
if [ -z "$python" ]; then
  echo "installing PyTorch and safetensors into $own" >&2
  mkdir -p "$build/peers"
  { python3 -m venv --system-site-packages "$own" && "$own/bin/pip" install -q torch safetensors numpy; } \
    >"$build/peers/pip.log" 2>&1 || echo "that failed: see $build/peers/pip.log" >&2
  python=$(find_python || true)
fi
exec "${python:-python3}" "$here/checkpoint.py" "$@"
