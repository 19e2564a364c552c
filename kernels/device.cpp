#include "lockstep/kernels/device.h"

#include <cxxabi.h>

#include <charconv>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/launch.h"

namespace lockstep {

std::string Device::name() const { return is_cpu() ? "cpu" : absl::StrCat("cuda:", index); }

Device parse_device(std::string_view text) {
  if (text == "cpu") return kCpu;
  if (text == "cuda") return {DeviceType::kCuda, 0};
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    int index = -1;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + kPrefix.size(), end, index);
    if (error == std::errc() && stop == end && index >= 0) return {DeviceType::kCuda, index};
  }
  throw Error(ErrorCode::kInvalidArgument, "device",
              std::string("want cpu, cuda or cuda:N, got '").append(text).append("'"));
}

int device_count(DeviceType type) {
  if (type == DeviceType::kCpu) return 1;
#ifdef LOCKSTEP_WITH_CUDA
  return cuda::device_count();
#else
  return 0;
#endif
}

void require_device(Device device, std::string_view op) {
  const int count = device_count(device.type);
  if (device.index < count) return;
#ifdef LOCKSTEP_WITH_CUDA
  constexpr const char* kWhere = "; see nvidia-smi, and whether CUDA_VISIBLE_DEVICES hides one";
#else
  constexpr const char* kWhere = ", as it was built without CUDA";
#endif
  throw Error(ErrorCode::kDevice, op,
              absl::StrCat("want device ", device.name(), ", but this build of Lockstep sees ",
                           count, " CUDA devices", kWhere, "; or use device cpu"));
}

std::string kernel_name(const char* mangled) {
  int status = 0;
  char* name = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string out = status == 0 ? name : mangled;
  std::free(name);
  return absl::StrReplaceAll(
      out, {{"lockstep::kernels::", ""}, {"lockstep::", ""}, {"(anonymous namespace)::", ""}});
}

void throw_no_kernel(Device device, const char* mangled) {
  throw Error(ErrorCode::kDevice, "launch",
              absl::StrCat("want a kernel for ", device.name(), ", but ", kernel_name(mangled),
                           " runs on cpu alone; move its operands with to(kCpu)"));
}

}  // namespace lockstep
