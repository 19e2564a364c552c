#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/nn/checkpoint/format.h"

namespace lockstep::nn {

inline constexpr const char* kManifestName = "manifest.json";

// What a checkpoint's directory holds. It is written last: where it verifies, the data files were
// complete.
struct Manifest {
  struct File {
    std::string name;  // in the same directory; data_file_name(i)
    FileSummary summary;
  };

  int64_t step = 0;
  // Counts the saves into one directory: of two checkpoints the one with the greater number is
  // newer, also where a run went back to an earlier step.
  uint64_t serial = 0;
  std::string run;  // names the run: 32 hexadecimal digits, the same in all its checkpoints
  int world_size = 1;
  std::string written;  // UTC, "2026-01-31T12:00:00Z"
  std::string writer;   // "lockstep 0.1.0"; empty where the file does not say
  std::vector<File> files;
};

// As many as the names of data files tell apart.
inline constexpr int kMaxFiles = 100000;

// "data-00000.lsck".
std::string data_file_name(int index);

std::string encode_manifest(const Manifest& manifest);

// `what` names the file. Throws Error(kCorrupt) unless the text is whole and every entry valid,
// Error(kMismatch) for a later version or an unknown feature.
Manifest decode_manifest(std::string_view text, std::string_view what);

// Reads the manifest of the checkpoint at `directory`, and checks that its files have the sizes it
// says. Throws as decode_manifest.
Manifest read_manifest(const std::filesystem::path& directory);

}  // namespace lockstep::nn
