#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/kernels/shape.h"
#include "lockstep/nn/checkpoint/format.h"
#include "lockstep/nn/module.h"

namespace lockstep::cli {

// A named tensor of a file.
struct Entry {
  std::string name;
  std::string dtype;  // Lockstep's name for it, or the file's where Lockstep has none
  Shape shape;
  int64_t bytes = 0;
  Tensor tensor;  // undefined where Lockstep has not its dtype
};

enum class Format { kCheckpoint, kSafetensors, kNpz, kNpy };
// "checkpoint", "safetensors", …
std::string_view name(Format format);

// What a file of tensors holds, whatever its format.
struct Archive {
  std::filesystem::path path;
  Format format = Format::kCheckpoint;
  // What else it says about itself: "step", "written"; or the strings of a safetensors file.
  std::vector<std::pair<std::string, std::string>> about;
  std::vector<Entry> tensors;
  std::vector<nn::NamedValue> values;  // of a checkpoint
};

// Whether `path` is a folder that has checkpoints in it, and is none itself.
bool is_checkpoint_folder(const std::filesystem::path& path);

// Reads the checkpoint, .safetensors, .npz or .npy file at `path`; its contents say which it is.
// Whatever has checksums is verified. Throws Error that says what is wrong.
Archive read_archive(const std::filesystem::path& path);

// Keeps the tensors of one part of a checkpoint, without its name ("model/fc.weight" becomes
// "fc.weight"), and no values. An empty `part` means "model" or, where there is none, the only part
// that has tensors. Returns its name. Throws Error(kInvalidArgument) that lists the parts.
std::string keep_part(Archive& archive, std::string part);

}  // namespace lockstep::cli
