#!/bin/sh
# Makes BUILD_FOLDER/bundle: the programs that want a CUDA device, stripped, with the libraries that
# they load. On the other side are CUDA 13's libraries, cuDNN 9 and, for its transport, NCCL.
#
#   bundle.sh BUILD_FOLDER
set -eu

build=${1:?usage: bundle.sh BUILD_FOLDER}
out=$build/bundle
most=$((64 << 20))

rm -rf "$out"
mkdir -p "$out/bin/peers" "$out/lib"
cp "$(dirname "$0")/../../bench/peers/torch_ddp_train.py" "$out/bin/peers/"
for program in gpu_test gpu_timeline_test bench_kernels bench_train; do
  strip -o "$out/bin/$program" "$build/bin/$program"
  ldd "$build/bin/$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
done | sort -u | while read -r library; do
  case ${library##*/} in
    libc.so.* | libm.so.* | libcuda.so.* | libcudart.so.* | libcublas* | libcudnn* | libnccl.so.*) ;;
    *) strip -o "$out/lib/${library##*/}" "$library" ;;
  esac
done
gzip -9 "$out"/lib/*  # oneDNN is larger than all else together; run.sh unpacks them
cat >"$out/run.sh" <<'END'
#!/bin/sh
# Tests, then measures, on the first CUDA device; CUDA's and cuDNN's libraries are in LD_LIBRARY_PATH
# or where the system looks for them. Arguments are bench_kernels', bench_train's in BENCH_TRAIN_ARGS.
# PyTorch is measured beside it where python3 has one for the device.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
for packed in "$here"/lib/*.gz; do
  if [ -e "$packed" ]; then gunzip "$packed"; fi
done
"$here/bin/gpu_test" --gtest_brief=1
"$here/bin/gpu_timeline_test" --gtest_brief=1
"$here/bin/bench_kernels" --device cuda:0 "$@"
# shellcheck disable=SC2086 -- a list of options
"$here/bin/bench_train" --device cuda:0 --dtype bf16 --models gpt2 --peers ${BENCH_TRAIN_ARGS-}
END
chmod +x "$out/run.sh"
size=$(du -sb "$out" | cut -f1)
echo "gpu-bundle: $out, $((size >> 20)) MiB"
if [ "$size" -gt "$most" ]; then
  echo "bundle.sh: want at most $((most >> 20)) MiB" >&2
  exit 1
fi
