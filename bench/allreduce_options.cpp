#include "allreduce_options.h"

#include <charconv>
#include <limits>
#include <sstream>

#include "devices.h"
#include "lockstep/kernels/error.h"

namespace bench {
namespace {

using lockstep::check;
using lockstep::DType;
using lockstep::comm::ReduceOp;

constexpr std::string_view kOp = "bench_allreduce";

int64_t parse_number(const std::string& text, const std::string& option, int64_t low,
                     int64_t high) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  check(error == std::errc() && stop == end && value >= low && value <= high, kOp, [&] {
    return option + " wants a whole number from " + std::to_string(low) + " to " +
           std::to_string(high) + ", got \"" + text + "\"";
  });
  return value;
}

template <class T, class Parse>
std::vector<T> parse_list(const std::string& text, const std::vector<T>& all, const Parse& parse) {
  if (text == "all") return all;
  std::vector<T> values;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) values.push_back(parse(item));
  if (values.empty()) values.push_back(parse(text));
  return values;
}

std::vector<DType> all_dtypes() {
  std::vector<DType> all;
  for (int i = 0; i < lockstep::kDTypeCount; ++i) all.push_back(static_cast<DType>(i));
  return all;
}

std::vector<ReduceOp> all_ops() {
  std::vector<ReduceOp> all;
  for (int i = 0; i < lockstep::kernels::kFoldOpCount; ++i) all.push_back(static_cast<ReduceOp>(i));
  return all;
}

}  // namespace

int64_t parse_bytes(const std::string& text, const std::string& option) {
  std::string digits = text;
  int shift = 0;
  if (!digits.empty()) {
    const std::string suffixes = "KMG";
    const size_t suffix = suffixes.find(static_cast<char>(std::toupper(digits.back())));
    if (suffix != std::string::npos) {
      shift = 10 * static_cast<int>(suffix + 1);
      digits.pop_back();
    }
  }
  return parse_number(digits, option, 0, (int64_t{1} << 40) >> shift) << shift;
}

std::string usage() {
  return "bench_allreduce: how fast is all_reduce, and is every element right?\n"
         "\n"
         "  -n RANKS          ranks to start (2); in a launcher's job its ranks are used\n"
         "  -b, -e BYTES      first and last size (8, 256M); K, M and G are powers of 1024\n"
         "  -f FACTOR         from size to size (2)\n"
         "  -i BYTES          add this from size to size instead\n"
         "  -d, -t TYPES      f32 f64 f16 bf16 i64 i32 u8 bool i8, with commas, or all (f32)\n"
         "  -o OPS            sum avg min max prod and or, with commas, or all (sum)\n"
         "  -w COUNT          collectives before the timed ones (5)\n"
         "  -c 0|1            check every element of every rank (1)\n"
         "  -R 0|1            in place: plain memory, or that of Communicator::allocate() (1)\n"
         "  --iters COUNT     timed collectives of each size (as many as the size allows)\n"
         "  --device LIST     where buffers lie: cpu, cuda:0 for all ranks, or cuda:0,cuda:1 for\n"
         "                    each its own (cpu)\n"
         "  --transport NAME  thread, shm, tcp or mixed; nccl or cuda for CUDA devices\n"
         "  --algo NAME       ring, two_shot or one_shot\n"
         "  --json FILE       write the results there as well\n"
         "  --tune FILE       measure the cost model's constants at length and add them to this\n"
         "                    table, which LOCKSTEP_TUNE=FILE then takes them from\n";
}

AllReduceOptions parse_options(int argc, char** argv) {
  AllReduceOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "-h" || name == "--help") {
      options.help = true;
      return options;
    }
    constexpr std::string_view kKnown[] = {
        "-n", "-b", "-e",      "-f",       "-i",          "-d",     "-t",     "-o",    "-w",
        "-c", "-R", "--iters", "--device", "--transport", "--algo", "--json", "--tune"};
    bool known = false;
    for (const std::string_view one : kKnown) known = known || one == name;
    check(known, kOp, [&] { return "there is no option " + name + "; -h lists them"; });
    check(i + 1 < argc, kOp, [&] { return name + " wants a value"; });
    const std::string value = argv[++i];
    if (name == "-n") options.ranks = static_cast<int>(parse_number(value, name, 1, 1024));
    if (name == "-b") options.begin_bytes = parse_bytes(value, name);
    if (name == "-e") options.end_bytes = parse_bytes(value, name);
    if (name == "-i") options.step_bytes = parse_bytes(value, name);
    if (name == "-f") options.step_factor = parse_number(value, name, 2, 1 << 20);
    if (name == "-w") options.warmup = parse_number(value, name, 0, 1 << 20);
    if (name == "-c") options.check = parse_number(value, name, 0, 1) == 1;
    if (name == "-R") options.registered = parse_number(value, name, 0, 1) == 1;
    if (name == "--iters") options.iterations = parse_number(value, name, 1, 1 << 24);
    if (name == "--transport") options.transport = value;
    if (name == "--algo") options.algorithm = value;
    if (name == "--json") options.json = value;
    if (name == "--device") options.devices = parse_devices(value);
    if (name == "--tune") options.tune = value;
    if (name == "-d" || name == "-t") {
      options.dtypes = parse_list(
          value, all_dtypes(), [](const std::string& text) { return lockstep::parse_dtype(text); });
    }
    if (name == "-o") {
      options.ops = parse_list(value, all_ops(), [](const std::string& text) {
        return lockstep::kernels::parse_fold_op(text);
      });
    }
  }
  check(options.begin_bytes <= options.end_bytes, kOp, "-b is larger than -e");
  return options;
}

}  // namespace bench
