// The tests of tests/simt/ on a CUDA device. Where there is none all of it fails: who runs this
// wants to know what a device does.
#include <gtest/gtest.h>

#include <cstdio>

#include "lockstep/kernels/cuda/runtime.h"

int main(int argc, char** argv) {
#ifdef LOCKSTEP_GPU_WITHOUT  // unless the command line or GTEST_FILTER chooses
  if (testing::GTEST_FLAG(filter) == "*") testing::GTEST_FLAG(filter) = "-" LOCKSTEP_GPU_WITHOUT;
#endif
  testing::InitGoogleTest(&argc, argv);
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  const int devices = lockstep::cuda::device_count();
  if (devices == 0) {
    std::fputs(
        "these tests want a CUDA device, but the driver shows none. See nvidia-smi, and whether "
        "CUDA_VISIBLE_DEVICES hides it.\n",
        stderr);
    return 1;
  }
  std::printf("%d CUDA device%s\n", devices, devices == 1 ? "" : "s");
  return RUN_ALL_TESTS();
}
