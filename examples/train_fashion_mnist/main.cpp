// Trains a small network on Fashion-MNIST, data-parallel over the ranks of a job: the program to
// start from when writing one's own. trainer.cpp has the training; the rest is comfort.
#include <cstdio>
#include <exception>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/world.h"
#include "options.h"
#include "trainer.h"

namespace {

constexpr const char* kProgram = "train_fashion_mnist";
constexpr int kFailed = 1;
constexpr int kMisused = 2;

int run(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  if (options.help) {
    std::fputs(usage(kProgram).c_str(), stdout);
    return 0;
  }
  Trainer(options, lockstep::comm::init()).run();
  return 0;
}

// All ranks have the same command line, so one of them complains.
int complain(const UsageError& error) {
  if (lockstep::comm::world_from_environment().rank == 0) {
    std::fprintf(stderr, "%s: %s\n(%s --help lists the options)\n", kProgram, error.what(),
                 kProgram);
  }
  return kMisused;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    try {
      return run(argc, argv);
    } catch (const UsageError& error) {
      return complain(error);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", kProgram, error.what());
    return kFailed;
  }
}
