// A group that is asked to go between CUDA devices, where there are none or none was given.
#include <gmock/gmock.h>

#include <cstdlib>

#include "../errors.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

Options options_of(const std::string& transport, Device device) {
  Options options;
  options.transport = transport;
  options.device = device;
  options.timeout = std::chrono::seconds(60);
  return options;
}

std::string refused(int n, ErrorCode code, const Options& options) {
  return message_of(code, [&] {
    run_ranks(
        n, [](Communicator&) { ADD_FAILURE() << "a group was made"; }, options);
  });
}

TEST(TransportCuda, WithoutADeviceSaysWhatWasWantedWhatCameAndWhatToDo) {
  const auto says = AllOf(HasSubstr("wants \"cuda\""), HasSubstr("got a group without a device"),
                          AnyOf(HasSubstr("is without CUDA"), HasSubstr("CUDA devices)")),
                          HasSubstr("give each rank its Options::device"), HasSubstr("shm"));
  for (const int n : {1, 3}) {
    EXPECT_THAT(refused(n, ErrorCode::kInvalidArgument, options_of("cuda", kCpu)),
                AllOf(HasSubstr("Options::transport"), says));
    setenv("LOCKSTEP_TRANSPORT", "cuda", 1);
    EXPECT_THAT(refused(n, ErrorCode::kInvalidArgument, {}),
                AllOf(HasSubstr("LOCKSTEP_TRANSPORT"), says));
    // What names another is not concerned.
    run_ranks(
        n, [](Communicator& comm) { comm.barrier().wait(); }, options_of("thread", kCpu));
    unsetenv("LOCKSTEP_TRANSPORT");
  }
}

TEST(TransportCuda, WithADeviceThatIsNotThereNamesIt) {
  const Device device = {DeviceType::kCuda, 60};
  for (const std::string transport : {"cuda", ""}) {
    const Error error = error_of([&] {
      run_ranks(
          3, [](Communicator&) { ADD_FAILURE(); }, options_of(transport, device));
    });
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cuda:60"), HasSubstr("use device cpu")));
  }
}

}  // namespace
}  // namespace lockstep::comm
