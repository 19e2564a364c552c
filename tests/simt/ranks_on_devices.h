#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "devices.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"
#include "schedules.h"
#include "simt/simt.h"

// Runs of ranks that are threads, each with a device: how those on emulated CUDA devices are held
// to the same run on the CPU.
namespace lockstep::nn {

using Group = std::shared_ptr<comm::Communicator>;
using Numbers = std::vector<double>;

// A rank for each device, and how device memory goes between them: "" straight, or staged by the
// host's transport of that name.
struct Ranks {
  std::vector<Device> devices;
  std::string transport = {};
};

inline std::string ranks_name(const ::testing::TestParamInfo<Ranks>& one) {
  const std::string& transport = one.param.transport;
  return name_of_way(transport.empty() ? "straight" : transport, one.param.devices, one.index);
}

inline const std::vector<Ranks> kAllRanks = {{{kFirst}},
                                             {{kFirst, kFirst}},
                                             {{kFirst, kSecond}},
                                             {{kSecond, kFirst, kSecond, kFirst}},
                                             {{kFirst, kSecond, kFirst}, "thread"}};

// What each rank found, in a schedule that no run before had.
inline std::vector<Numbers> run(const Ranks& ranks,
                                const std::function<Numbers(const Group&, Device)>& fn) {
  static uint64_t seed = 0;
  simt::seed(++seed);
  std::vector<Numbers> found(ranks.devices.size());
  comm::Options options;
  options.transport = ranks.transport;
  options.timeout = std::chrono::seconds(100);
  comm::run_ranks(
      ranks.devices,
      [&](comm::Communicator& group) {
        const Group shared(&group, [](comm::Communicator*) {});
        found[static_cast<size_t>(group.rank())] = fn(shared, group.device());
      },
      options);
  EXPECT_EQ(simt::take_report(), "");
  return found;
}

inline std::vector<Numbers> run_on_cpu(const Ranks& ranks,
                                       const std::function<Numbers(const Group&, Device)>& fn) {
  return run({std::vector<Device>(ranks.devices.size(), kCpu)}, fn);
}

// Holds each rank's numbers to those of the same run on the CPU, under some schedules. 0: bits.
inline void expect_as_on_cpu(const Ranks& ranks, double tolerance,
                             const std::function<Numbers(const Group&, Device)>& fn,
                             int schedules = kSchedules) {
  const std::vector<Numbers> want = run_on_cpu(ranks, fn);
  for (int k = 1; k <= schedules; ++k) {
    const std::vector<Numbers> got = run(ranks, fn);
    for (size_t r = 0; r < want.size(); ++r) {
      ASSERT_EQ(got[r].size(), want[r].size());
      for (size_t i = 0; i < want[r].size(); ++i) {
        const double w = want[r][i];
        const bool same = got[r][i] == w || (std::isnan(got[r][i]) && std::isnan(w)) ||
                          std::abs(got[r][i] - w) <= tolerance * (1 + std::abs(w));
        ASSERT_TRUE(same) << "rank " << r << ", number " << i << ", schedule " << k << ": got "
                          << got[r][i] << ", want " << w;
      }
    }
  }
}

inline void append(Numbers& out, const Tensor& x) {
  for (double value : x.detach().to(DType::kF64).to_vector<double>()) out.push_back(value);
}

// Numbers around 0 that depend on their place and the salt.
inline Tensor wave(const Shape& shape, int salt, TensorOptions options = {}) {
  NoGrad no_grad;
  const Tensor places =
      Tensor::arange(0.0, static_cast<double>(numel(shape)), 1.0, {DType::kF64}).reshape(shape);
  return sin(places * 0.37 + static_cast<double>(salt) * 1.3).to(options.dtype).to(options.device);
}

// A loss whose gradient does not vanish behind a batch norm.
inline Tensor loss_of(const Tensor& y) {
  return mean(square(y) * (wave(y.shape(), 5, y.options()) + 1.5));
}

}  // namespace lockstep::nn
