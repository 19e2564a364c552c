#include "lockstep/nn/checkpoint/save.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/checksum.h"
#include "lockstep/nn/checkpoint/sharing.h"
#include "lockstep/nn/checkpoint/state.h"
#include "lockstep/nn/checkpoint/together.h"
#include "lockstep/nn/host_copy.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSave = "save_checkpoint";

// Steps of at most 18 digits keep names, and sums of steps, in bounds.
constexpr int64_t kMostSteps = int64_t{999'999'999'999'999'999};

// Tensors are cut into shards at multiples of this: small ones not at all.
constexpr uint64_t kShardGrain = uint64_t{1} << 20;

// What ranks must agree on before they save as one.
uint64_t layout_checksum(const SaveJob& job) {
  std::string text = str_cat(job.options.sharded ? "sharded" : "one file", "\n");
  for (const auto& [name, tensor] : job.tensors) {
    text += str_cat(name, " ", lockstep::name(tensor.dtype()), to_string(tensor.shape()), "\n");
  }
  for (const StoredView& view : job.views) {
    text += str_cat(view.name, " of ", view.of, to_string(view.shape), to_string(view.strides), " ",
                    view.start, "\n");
  }
  for (const NamedValue& value : job.values) {
    text += str_cat(value.name, " ", type_name(value.value), "\n");
  }
  return xxh3(text);
}

// Collective.
void check_agreement(comm::Communicator* group, const SaveJob& job, size_t generator_words) {
  constexpr size_t kWords = 3;
  const std::vector<uint64_t> all = gather_words(
      group, {static_cast<uint64_t>(job.request.step), layout_checksum(job), generator_words});
  for (size_t rank = 1; rank * kWords < all.size(); ++rank) {
    const uint64_t* theirs = all.data() + rank * kWords;
    if (theirs[0] != all[0]) {
      throw Error(ErrorCode::kMismatch, kSave,
                  str_cat("rank ", rank, " saves step ", theirs[0], ", rank 0 step ", all[0]));
    }
    if (theirs[1] != all[1] || theirs[2] != all[2]) {
      throw Error(ErrorCode::kMismatch, kSave,
                  str_cat("rank ", rank,
                          " saves tensors and values of other names, shapes or types than rank 0: "
                          "every rank adds the same things to its TrainingState"));
    }
  }
}

// The elements of `tensor` that `shard` of `shards` holds, if the bytes of all tensors are cut into
// equal shares. `before` are the bytes of the tensors before it.
ElementRange share_of(const Tensor& tensor, uint64_t before, uint64_t all_bytes, int shard,
                      int shards) {
  const auto bytes = static_cast<uint64_t>(tensor.nbytes());
  const auto cut = [&](int at) -> uint64_t {
    if (at == shards) return bytes;
    const uint64_t place = all_bytes / static_cast<uint64_t>(shards) * static_cast<uint64_t>(at);
    const uint64_t inside = std::clamp(place, before, before + bytes) - before;
    return inside == bytes ? bytes : inside / kShardGrain * kShardGrain;
  };
  const uint64_t element = size_of(tensor.dtype());
  const uint64_t begin = cut(shard) / element;
  return {begin, cut(shard + 1) / element - begin};
}

// What of each tensor is in the file `shard` of `shards`.
std::vector<ElementRange> shares_of(const NamedTensors& tensors, int shard, int shards) {
  uint64_t all_bytes = 0;
  for (const auto& [name, tensor] : tensors) all_bytes += static_cast<uint64_t>(tensor.nbytes());
  std::vector<ElementRange> shares;
  uint64_t before = 0;
  for (const auto& [name, tensor] : tensors) {
    shares.push_back(share_of(tensor, before, all_bytes, shard, shards));
    before += static_cast<uint64_t>(tensor.nbytes());
  }
  return shares;
}

void print_warning(const std::string& text) {
  std::fprintf(stderr, "lockstep: warning: %s\n", text.c_str());
}

}  // namespace

void SaveJob::copy_tensors(const comm::Communicator* group) {
  std::vector<Device> devices;
  const std::vector<ElementRange> shares = shares_of(tensors, rank_of(group), shards(group));
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (shares[i].count == 0) continue;  // this rank writes nothing of it
    Tensor& tensor = tensors[i].second;
    const bool is_known =
        std::find(devices.begin(), devices.end(), tensor.device()) != devices.end();
    if (!is_known) devices.push_back(tensor.device());
    tensor = host_copy(tensor);
  }
  for (const Device device : devices) copied_.push_back(current_stream(device).record());
}

int SaveJob::shards(const comm::Communicator* group) const {
  return options.sharded ? size_of_group(group) : 1;
}

// The data file number `shard`.
FileSummary SaveJob::write_shard(Disk& disk, int shard, int shards) const {
  const std::vector<ElementRange> shares = shares_of(tensors, shard, shards);
  std::vector<TensorBytes> parts;
  std::vector<Tensor> dense;  // the parts, row-major and on the host
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    // One without elements is in the first file.
    if (shares[i].count == 0 && (shard > 0 || tensor.numel() > 0)) continue;
    const Tensor flat = reshape(tensor, {tensor.numel()});
    dense.push_back(on_host(narrow(flat, 0, static_cast<int64_t>(shares[i].first),
                                   static_cast<int64_t>(shares[i].count))));
    parts.push_back({name, tensor.dtype(), tensor.shape(), shares[i], dense.back().view().data});
  }
  const fs::path path = temporary_path(folder, request.step) / data_file_name(shard);
  if (shard > 0) return write_data_file(disk, path, parts, {}, {});
  return write_data_file(disk, path, parts, values, views);
}

void SaveJob::run(comm::Communicator* group) const {
  NoGrad no_grad;
  const int rank = rank_of(group);
  const int files = shards(group);
  Disk real_disk(std::string(kSave), options.sync_files);
  Disk& disk = options.disk != nullptr ? *options.disk : real_disk;
  std::optional<CheckpointSave> save;
  together(group, kSave, [&] {
    if (rank == 0) save.emplace(disk, folder, request);
  });
  FileSummary summary;
  together(group, kSave, [&] {
    for (const Event& event : copied_) event.synchronize();
    if (rank < files) summary = write_shard(disk, rank, files);
  });
  const std::vector<uint64_t> words = gather_words(group, {summary.bytes, summary.index_checksum});
  together(group, kSave, [&] {
    if (rank != 0) return;
    std::vector<FileSummary> summaries;
    for (int i = 0; i < files; ++i) summaries.push_back({words[2 * i], words[2 * i + 1]});
    save->finish(summaries, options.warn ? options.warn : print_warning);
  });
}

SaveJob prepare_save(const fs::path& folder, int64_t step, const TrainingState& state,
                     const CheckpointOptions& options) {
  comm::Communicator* group = options.group;
  SaveJob job;
  GeneratorWords words;
  together(group, kSave, [&] {
    check(step >= 0 && step <= kMostSteps, kSave,
          [&] { return str_cat("want a step of 0 and more, got ", step); });
    check(options.keep >= 0 && options.keep_every >= 0, kSave, [&] {
      return str_cat("want keep of 0 (all) and more, and keep_every of 0 (none) and more, got ",
                     options.keep, " and ", options.keep_every);
    });
    check(!folder.empty(), kSave, "want a folder, got an empty path");
    check(!options.sharded || size_of_group(group) <= kMaxFiles, kSave,
          [&] { return str_cat("want at most ", kMaxFiles, " shards"); });
    Contents contents = StateAccess::collect(state);
    SharedLayout layout = lay_out_shared(contents.tensors);
    job.tensors = std::move(layout.stored);
    job.views = std::move(layout.views);
    job.values = std::move(contents.values);
    words = StateAccess::generators(state);
  });
  job.folder = folder;
  job.options = options;
  job.request = {step, StateAccess::run(state), size_of_group(group), options.keep,
                 options.keep_every};
  check_agreement(group, job, words.size());
  StateAccess::add_generators(state, gather_words(group, words), job.values);
  return job;
}

}  // namespace lockstep::nn
