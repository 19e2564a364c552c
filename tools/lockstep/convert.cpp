// `lockstep convert`: tensors from one format to another.

#include <charconv>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "archive.h"
#include "arguments.h"
#include "commands.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/checkpoint/directory.h"
#include "lockstep/nn/numpy.h"
#include "lockstep/nn/safetensors.h"
#include "table.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOp = "convert";
constexpr const char* kUsage =
    "usage: lockstep convert [OPTIONS] IN OUT\n"
    "\n"
    "Writes the tensors of IN (a checkpoint, or a .safetensors, .npz or .npy file) to OUT,\n"
    "whose name says what it becomes: .safetensors, .npz, .npy (of one tensor), or a\n"
    "checkpoint, as in out/step-00000000. A file that is there is replaced once the new one is\n"
    "complete.\n"
    "\n"
    "options:\n"
    "  --part NAME    the part of the checkpoint IN whose tensors are taken, without its name\n"
    "                 (model), or the part of the checkpoint OUT that they become (model)\n"
    "  --all          all tensors of the checkpoint IN, under their full names\n"
    "  --dtype DTYPE  converts floating tensors, to f32, f64, f16 or bf16\n"
    "  --compress     deflates an .npz file\n"
    "  --help         prints this\n"
    "\n"
    "The status is 0, or 1 if it cannot be done, or 2 if the command line is wrong.\n";

// The step of "step-00000123"; -1 for other names.
int64_t step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  constexpr std::string_view kPrefix = "step-";
  int64_t step = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const auto [end, error] =
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  const bool whole = error == std::errc() && end == name.data() + name.size();
  return whole && nn::checkpoint_name(step) == name ? step : -1;
}

// A module that has tensors under the paths that they came with.
class Folder : public nn::Module {
 public:
  void add(std::string_view rest, const std::string& path, const Tensor& tensor) {
    const size_t dot = rest.find('.');
    const std::string name(rest.substr(0, dot));
    check(!name.empty(), kOp, [&] {
      return str_cat("a checkpoint cannot hold the name '", path,
                     "', which has nothing before or after a dot");
    });
    if (dot == rest.npos) {
      tensors_.push_back(tensor);
      register_buffer(name, tensors_.back());
      return;
    }
    std::shared_ptr<Folder>& folder = folders_[name];
    if (folder == nullptr) folder = register_module(name, std::make_shared<Folder>());
    folder->add(rest.substr(dot + 1), path, tensor);
  }

 private:
  std::deque<Tensor> tensors_;  // whose elements stay where they are
  std::map<std::string, std::shared_ptr<Folder>> folders_;
};

void write_checkpoint(const fs::path& out, const std::string& part,
                      const nn::NamedTensors& tensors) {
  const auto module = std::make_shared<Folder>();
  for (const auto& [name, tensor] : tensors) module->add(name, name, tensor);
  nn::TrainingState state;
  state.add(part, *module);
  const fs::path folder = out.has_parent_path() ? out.parent_path() : fs::path(".");
  nn::CheckpointOptions options;
  options.keep = 0;
  nn::save_checkpoint(folder, step_of(out), state, options);
}

void write(const fs::path& out, const nn::NamedTensors& tensors, const nn::Metadata& metadata,
           const Arguments& arguments) {
  const std::string ending = out.extension().string();
  if (ending == ".safetensors") {
    nn::save_safetensors(out, tensors, metadata);
  } else if (ending == ".npz") {
    nn::save_npz(out, tensors, arguments.has("--compress"));
  } else if (ending == ".npy") {
    check(tensors.size() == 1, kOp, [&] {
      return str_cat("an .npy file holds one tensor, not ", tensors.size(), ": write an .npz file");
    });
    nn::save_npy(out, tensors[0].second);
  } else {
    const std::string* part = arguments.value("--part");
    write_checkpoint(out, part != nullptr ? *part : "model", tensors);
  }
}

// What of a checkpoint is left out when one part is taken.
std::string others(const Archive& archive, const std::string& part) {
  std::set<std::string> names;
  for (const Entry& entry : archive.tensors)
    names.insert(entry.name.substr(0, entry.name.find('/')));
  for (const auto& value : archive.values) names.insert(value.name.substr(0, value.name.find('/')));
  names.erase(part);
  return absl::StrJoin(names, ", ");
}

nn::NamedTensors tensors_of(const Archive& archive, const std::string* dtype) {
  NoGrad no_grad;
  nn::NamedTensors tensors;
  for (const Entry& entry : archive.tensors) {
    if (!entry.tensor.defined()) {
      throw Error(ErrorCode::kMismatch, kOp,
                  str_cat(archive.path.string(), ": tensor '", entry.name, "' has the dtype ",
                          entry.dtype, ", which Lockstep has not"));
    }
    const bool converts = dtype != nullptr && is_floating(entry.tensor.dtype());
    tensors.emplace_back(entry.name,
                         converts ? lockstep::to(entry.tensor, parse_dtype(*dtype)) : entry.tensor);
  }
  return tensors;
}

int convert(const std::vector<std::string>& list) {
  const Arguments arguments =
      parse_arguments(list, 2, {"--all", "--compress"}, {"--part", "--dtype"});
  if (arguments.has("--help")) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const fs::path out = arguments.files[1];
  const std::string ending = out.extension().string();
  const bool file = ending == ".safetensors" || ending == ".npz" || ending == ".npy";
  if (!file && step_of(out) < 0) {
    throw UsageError(
        str_cat("want OUT to end in .safetensors, .npz or .npy, or to be a "
                "checkpoint as out/step-00000000, got \"",
                out.string(), "\""));
  }
  const std::string* part = arguments.value("--part");
  const std::string* dtype = arguments.value("--dtype");
  if (dtype != nullptr && !is_floating(parse_dtype(*dtype))) {
    throw UsageError(str_cat("--dtype wants f32, f64, f16 or bf16, got \"", *dtype, "\""));
  }

  Archive archive = read_archive(arguments.files[0]);
  nn::Metadata metadata;
  std::string left_out;
  if (archive.format == Format::kCheckpoint) {
    if (!file) {
      throw UsageError("IN and OUT are both checkpoints: copy the folder, with cp -r");
    }
    // What PyTorch's tools look for, and where it came from.
    metadata["format"] = "pt";
    for (const auto& [key, value] : archive.about) metadata["lockstep." + key] = value;
    if (arguments.has("--all")) {
      left_out = archive.values.empty()
                     ? ""
                     : counted(static_cast<int64_t>(archive.values.size()), "value");
    } else {
      const Archive whole = archive;
      left_out = others(whole, keep_part(archive, part != nullptr ? *part : ""));
    }
  } else if (archive.format == Format::kSafetensors && ending != ".safetensors" &&
             !archive.about.empty()) {
    left_out = "the metadata";
  } else if (archive.format == Format::kSafetensors) {
    metadata.insert(archive.about.begin(), archive.about.end());
  }
  const nn::NamedTensors tensors = tensors_of(archive, dtype);
  write(out, tensors, metadata, arguments);
  std::printf("%s: %s%s\n", printable(out.string()).c_str(),
              counted(static_cast<int64_t>(tensors.size()), "tensor").c_str(),
              left_out.empty() ? "" : str_cat(", without ", printable(left_out)).c_str());
  return 0;
}

}  // namespace

const Command kConvertCommand{"convert", "writes tensors in another format", kUsage, convert};

}  // namespace lockstep::cli
