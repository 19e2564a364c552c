// How fast is a checkpoint saved and loaded, beside what the disk and the memory can do?
//
// Each round measures everything once, in turns, so that a machine that slows down slows all; the
// figures are medians over the rounds. Files are in the system's cache when they are read.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "lockstep/core/random.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint.h"

namespace fs = std::filesystem;
namespace nn = lockstep::nn;
using lockstep::str_cat;
using lockstep::Tensor;

namespace {

constexpr const char* kUsage =
    "Measures saving and loading of checkpoints, beside a plain write with fsync.\n\n"
    "  bench_checkpoint [options]\n\n"
    "  --folder DIR     files go into a new folder in it, which is removed at the end (.)\n"
    "  --tensors N      how many (16)\n"
    "  --elements N     of each tensor, f32 (4194304)\n"
    "  --rounds N       (5)\n"
    "  --json FILE      write the seconds of every round\n"
    "  --help\n";

struct Options {
  std::string folder = ".";
  int64_t tensors = 16;
  int64_t elements = 4 << 20;
  int64_t rounds = 5;
  std::string json;
  bool help = false;
};

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

int64_t parse_count(const std::string& option, const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 1 << 30) {
    throw UsageError(str_cat(option, ": want a number from 1 to 2^30, got '", text, "'"));
  }
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--help") {
      options.help = true;
      continue;
    }
    const bool known = option == "--folder" || option == "--json" || option == "--tensors" ||
                       option == "--elements" || option == "--rounds";
    if (!known) throw UsageError(str_cat("there is no option '", option, "'"));
    if (++i == argc) throw UsageError(str_cat(option, ": want a value"));
    if (option == "--folder") options.folder = argv[i];
    if (option == "--json") options.json = argv[i];
    if (option == "--tensors") options.tensors = parse_count(option, argv[i]);
    if (option == "--elements") options.elements = parse_count(option, argv[i]);
    if (option == "--rounds") options.rounds = parse_count(option, argv[i]);
  }
  return options;
}

double seconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void require(bool ok, const std::string& what) {
  if (!ok) throw std::system_error(errno, std::generic_category(), what);
}

// The best that a save can do: the same bytes in one file.
void write_and_sync(const fs::path& path, const std::vector<Tensor>& tensors) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666);
  require(file >= 0, path.string());
  for (const Tensor& tensor : tensors) {
    const char* data = reinterpret_cast<const char*>(tensor.data<float>());
    for (int64_t left = tensor.nbytes(); left > 0;) {
      const ssize_t count = ::write(file, data, static_cast<size_t>(left));
      require(count > 0, path.string());
      data += count;
      left -= count;
    }
  }
  require(::fsync(file) == 0 && ::close(file) == 0, path.string());
}

// One element of each page, so that all of it is in memory.
float touch(const nn::NamedTensors& tensors) {
  float sum = 0;
  for (const auto& [name, tensor] : tensors) {
    const float* data = tensor.data<float>();
    for (int64_t i = 0; i < tensor.numel(); i += 1024) sum += data[i];
  }
  return sum;
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    for (int64_t i = 0; i < options_.tensors; ++i) {
      tensors_.push_back(lockstep::randn({options_.elements}));
      copies_.push_back(Tensor::zeros({options_.elements}));
      named_.emplace_back(str_cat("layers.", i, ".weight"), tensors_.back());
    }
    state_.add("model", named_);
    std::string name = (fs::path(options_.folder) / "bench-checkpoint-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr, name);
    folder_ = name;
  }
  ~Bench() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  void round(int64_t step) {
    const fs::path plain = folder_ / "plain";
    const nn::CheckpointOptions all{.keep = 0};
    time("write and fsync", [&] { write_and_sync(plain, tensors_); });
    fs::remove(plain);
    time("save_checkpoint", [&] { nn::save_checkpoint(folder_, step, state_, all); });
    const fs::path saved = folder_ / step_name(step);
    fs::remove_all(saved);
    time("save_checkpoint, not synced",
         [&] { nn::save_checkpoint(folder_, step, state_, {.keep = 0, .sync_files = false}); });
    time("load_checkpoint", [&] { nn::load_checkpoint(saved, state_); });
    time("load_checkpoint, mmap", [&] { nn::load_checkpoint(saved, state_, {.mmap = true}); });
    time("read_state_dict", [&] { nn::read_state_dict(saved); });
    time("read_state_dict, mmap", [&] { nn::read_state_dict(saved, "model", {.mmap = true}); });
    nn::NamedTensors mapped;
    time("the same, data not verified",
         [&] { mapped = nn::read_state_dict(saved, "model", {.mmap = true, .verify = false}); });
    time("first touch of each page of it", [&] { sink_ = touch(mapped); });
    fs::remove_all(saved);
    nn::AsyncCheckpointer saver(folder_, all);
    for (const char* what : {"AsyncCheckpointer::save, the first", "AsyncCheckpointer::save"}) {
      time(what, [&] { saver.save(step, state_); });
      saver.wait();
      fs::remove_all(saved);
    }
    time("memory copy", [&] {
      for (size_t i = 0; i < tensors_.size(); ++i) {
        std::memcpy(copies_[i].data<float>(), tensors_[i].data<float>(),
                    static_cast<size_t>(tensors_[i].nbytes()));
      }
    });
  }

  void print() const {
    const double bytes = static_cast<double>(options_.tensors * options_.elements) * 4;
    std::printf("%lld tensors of %lld f32, %.1f MiB in %s\n\n",
                static_cast<long long>(options_.tensors), static_cast<long long>(options_.elements),
                bytes / (1 << 20), folder_.c_str());
    std::printf("%-36s %10s %10s %10s\n", "", "median ms", "best ms", "GB/s");
    for (const std::string& what : order_) {
      std::vector<double> sorted = seconds_.at(what);
      std::sort(sorted.begin(), sorted.end());
      const double median = sorted[sorted.size() / 2];
      std::printf("%-36s %10.2f %10.2f %10.2f\n", what.c_str(), 1e3 * median, 1e3 * sorted[0],
                  bytes / median / 1e9);
    }
  }

  void write_json() const {
    std::ofstream file(options_.json);
    file << nlohmann::json{{"tensors", options_.tensors},
                           {"elements", options_.elements},
                           {"seconds", seconds_}}
                .dump(1)
         << "\n";
    if (!file.flush()) throw std::runtime_error("cannot write " + options_.json);
  }

 private:
  static std::string step_name(int64_t step) {
    char name[32];
    std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
    return name;
  }

  void time(const std::string& what, const std::function<void()>& f) {
    auto& list = seconds_[what];
    if (list.empty()) order_.push_back(what);
    list.push_back(seconds_of(f));
  }

  Options options_;
  fs::path folder_;
  std::vector<Tensor> tensors_;
  std::vector<Tensor> copies_;
  nn::NamedTensors named_;
  nn::TrainingState state_;
  std::map<std::string, std::vector<double>> seconds_;
  std::vector<std::string> order_;
  volatile float sink_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    if (options.help) {
      std::printf("%s", kUsage);
      return 0;
    }
    Bench bench(options);
    for (int64_t round = 1; round <= options.rounds; ++round) bench.round(round);
    bench.print();
    if (!options.json.empty()) bench.write_json();
    return 0;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "bench_checkpoint: %s\n\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_checkpoint: %s\n", error.what());
    return 1;
  }
}
