// `lockstep inspect`: what a file of tensors holds.

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "archive.h"
#include "arguments.h"
#include "commands.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/directory.h"
#include "statistics.h"
#include "table.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using Align = Table::Align;

constexpr const char* kUsage =
    "usage: lockstep inspect [OPTIONS] PATH\n"
    "\n"
    "Prints what PATH holds: a checkpoint (out/step-00000123), or a .safetensors, .npz or\n"
    ".npy file; names, dtypes, shapes, sizes, and the least, greatest and mean value (of the\n"
    "elements that are no NaN). For a folder of checkpoints it lists these, the newest first.\n"
    "Whatever is read is compared with its checksums (safetensors and .npy have none).\n"
    "\n"
    "options:\n"
    "  --verify   reads everything, for a folder each of its checkpoints, and prints only\n"
    "             whether it is whole\n"
    "  --json     prints JSON\n"
    "  --help     prints this\n"
    "\n"
    "The status is 0, or 1 if something is damaged or cannot be read, or 2 if the command\n"
    "line is wrong.\n";

ordered_json json_number(const Number& number) {
  if (const auto* whole = std::get_if<int64_t>(&number)) return *whole;
  const double value = std::get<double>(number);
  return std::isfinite(value) ? ordered_json(value) : ordered_json(number_text(number));
}

ordered_json json_value(const nn::Value& value) {
  return std::visit(
      [](const auto& v) -> ordered_json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, double>) {
          return json_number(v);
        } else {
          return v;
        }
      },
      value);
}

std::string text_of(const nn::Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return printable(*text);
  if (const auto* number = std::get_if<double>(&value)) return absl::StrFormat("%.17g", *number);
  return json_value(value).dump();
}

int64_t bytes_of(const Archive& archive) {
  int64_t bytes = 0;
  for (const Entry& entry : archive.tensors) bytes += entry.bytes;
  return bytes;
}

std::string summary_of(const Archive& archive) {
  std::string text = str_cat(counted(static_cast<int64_t>(archive.tensors.size()), "tensor"),
                             " of ", counted(bytes_of(archive), "byte"));
  if (archive.format == Format::kCheckpoint) {
    text += str_cat(", ", counted(static_cast<int64_t>(archive.values.size()), "value"));
  }
  return text;
}

ordered_json json_of(const Archive& archive) {
  ordered_json root = {{"path", archive.path.string()}, {"format", name(archive.format)}};
  ordered_json& about = root["about"] = ordered_json::object();
  for (const auto& [key, value] : archive.about) about[key] = value;
  ordered_json& tensors = root["tensors"] = ordered_json::array();
  for (const Entry& entry : archive.tensors) {
    ordered_json row = {{"name", entry.name},
                        {"dtype", entry.dtype},
                        {"shape", std::vector<int64_t>(entry.shape.begin(), entry.shape.end())},
                        {"bytes", entry.bytes}};
    if (entry.tensor.defined()) {
      const Statistics statistics = statistics_of(entry.tensor);
      if (statistics.numbers > 0) {
        row["min"] = json_number(statistics.min);
        row["max"] = json_number(statistics.max);
        row["mean"] = json_number(statistics.mean);
      }
      row["nan"] = statistics.nans;
    }
    tensors.push_back(std::move(row));
  }
  if (archive.format == Format::kCheckpoint) {
    ordered_json& values = root["values"] = ordered_json::array();
    for (const nn::NamedValue& value : archive.values) {
      values.push_back({{"name", value.name},
                        {"type", nn::type_name(value.value)},
                        {"value", json_value(value.value)}});
    }
  }
  return root;
}

void print(const ordered_json& root) {
  // Names may be any bytes where the format lets them.
  std::puts(root.dump(2, ' ', false, ordered_json::error_handler_t::replace).c_str());
}

void print(const Archive& archive) {
  std::printf("%s: %s\n", printable(archive.path.string()).c_str(),
              std::string(name(archive.format)).c_str());
  for (const auto& [key, value] : archive.about) {
    std::printf("  %s: %s\n", printable(key).c_str(), printable(value).c_str());
  }
  Table table({{"name"},
               {"dtype"},
               {"shape"},
               {"bytes", Align::kRight},
               {"min", Align::kRight},
               {"max", Align::kRight},
               {"mean", Align::kRight},
               {"NaN", Align::kRight}});
  for (const Entry& entry : archive.tensors) {
    std::vector<std::string> row = {printable(entry.name), entry.dtype, to_string(entry.shape),
                                    with_commas(entry.bytes)};
    std::vector<std::string> numbers = {"-", "-", "-", "-"};
    if (entry.tensor.defined()) {
      const Statistics statistics = statistics_of(entry.tensor);
      if (statistics.numbers > 0) {
        numbers = {number_text(statistics.min), number_text(statistics.max),
                   number_text(Number(statistics.mean)), ""};
      }
      numbers[3] = with_commas(statistics.nans);
    }
    row.insert(row.end(), numbers.begin(), numbers.end());
    table.add(std::move(row));
  }
  if (!table.empty()) std::printf("\n%s", table.to_string().c_str());
  Table values({{"value"}, {"type"}, {""}});
  for (const nn::NamedValue& value : archive.values) {
    values.add(
        {printable(value.name), std::string(nn::type_name(value.value)), text_of(value.value)});
  }
  if (!values.empty()) std::printf("\n%s", values.to_string().c_str());
  std::printf("\n%s\n", summary_of(archive).c_str());
}

// A checkpoint of a folder, and whether it is whole.
struct Listed {
  nn::StoredCheckpoint stored;
  uint64_t bytes = 0;
  std::string damage;
};

std::vector<Listed> list_checkpoints(const fs::path& folder, bool verify) {
  std::vector<Listed> list;
  for (nn::StoredCheckpoint& stored : nn::find_checkpoints(folder)) {
    Listed listed;
    listed.damage = stored.damage;
    if (stored.manifest) {
      for (const auto& file : stored.manifest->files) listed.bytes += file.summary.bytes;
      try {
        if (verify) read_archive(stored.path);
      } catch (const Error& error) {
        listed.damage = error.what();
      }
    }
    listed.stored = std::move(stored);
    list.push_back(std::move(listed));
  }
  return list;
}

int inspect_folder(const fs::path& folder, const Arguments& arguments) {
  const bool verify = arguments.has("--verify");
  const std::vector<Listed> list = list_checkpoints(folder, verify);
  bool damaged = false;
  ordered_json rows = ordered_json::array();
  Table table({{"checkpoint"},
               {"written"},
               {"ranks", Align::kRight},
               {"bytes", Align::kRight},
               {"run"},
               {"state"}});
  for (const Listed& listed : list) {
    damaged = damaged || !listed.damage.empty();
    const std::string file = listed.stored.path.filename().string();
    ordered_json row = {{"name", file}, {"step", listed.stored.step}};
    std::vector<std::string> cells = {file, "-", "-", "-", "-"};
    if (const auto& manifest = listed.stored.manifest) {
      row["written"] = manifest->written;
      row["world_size"] = manifest->world_size;
      row["bytes"] = listed.bytes;
      row["run"] = manifest->run;
      cells = {file, manifest->written, std::to_string(manifest->world_size),
               with_commas(static_cast<int64_t>(listed.bytes)), manifest->run.substr(0, 8)};
    }
    row["damage"] = listed.damage.empty() ? ordered_json() : ordered_json(listed.damage);
    rows.push_back(std::move(row));
    cells.push_back(listed.damage.empty() ? (verify ? "whole" : "complete")
                                          : "damaged: " + printable(listed.damage));
    table.add(std::move(cells));
  }
  if (arguments.has("--json")) {
    print(ordered_json{{"path", folder.string()},
                       {"format", "folder of checkpoints"},
                       {"verified", verify},
                       {"checkpoints", std::move(rows)}});
  } else {
    std::printf("%s: a folder of checkpoints, the newest first\n\n%s",
                printable(folder.string()).c_str(), table.to_string().c_str());
  }
  return damaged ? 1 : 0;
}

int verify_archive(const fs::path& path, bool json) {
  const Archive archive = read_archive(path);
  if (json) {
    print(ordered_json{{"path", path.string()},
                       {"format", name(archive.format)},
                       {"verified", true},
                       {"tensors", archive.tensors.size()},
                       {"bytes", bytes_of(archive)},
                       {"damage", nullptr}});
    return 0;
  }
  const bool sums = archive.format == Format::kCheckpoint || archive.format == Format::kNpz;
  std::printf("%s: %s, %s\n", printable(path.string()).c_str(),
              sums ? "whole" : "well-formed (the format has no checksums)",
              summary_of(archive).c_str());
  return 0;
}

int inspect(const std::vector<std::string>& list) {
  const Arguments arguments = parse_arguments(list, 1, {"--verify", "--json"}, {});
  if (arguments.has("--help")) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const fs::path path = arguments.files[0];
  if (is_checkpoint_folder(path)) return inspect_folder(path, arguments);
  const bool json = arguments.has("--json");
  if (arguments.has("--verify")) {
    try {
      return verify_archive(path, json);
    } catch (const Error& error) {
      if (!json) throw;
      print(ordered_json{{"path", path.string()}, {"verified", true}, {"damage", error.what()}});
      return 1;
    }
  }
  const Archive archive = read_archive(path);
  if (json) {
    print(json_of(archive));
  } else {
    print(archive);
  }
  return 0;
}

}  // namespace

const Command kInspectCommand{"inspect", "shows what a checkpoint or a file of tensors holds",
                              kUsage, inspect};

}  // namespace lockstep::cli
