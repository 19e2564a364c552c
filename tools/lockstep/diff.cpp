// `lockstep diff`: by what two files of tensors differ.

#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "archive.h"
#include "arguments.h"
#include "commands.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "statistics.h"
#include "table.h"

namespace lockstep::cli {
namespace {

using nlohmann::ordered_json;
using Align = Table::Align;

constexpr const char* kUsage =
    "usage: lockstep diff [OPTIONS] A B\n"
    "\n"
    "Compares two checkpoints or files of tensors (.safetensors, .npz, .npy) by name, and\n"
    "prints what differs, and by how much. Every bit counts unless a tolerance is given. Where\n"
    "only one of both is a checkpoint, its part \"model\" is compared.\n"
    "\n"
    "options:\n"
    "  --atol X      elements may be X apart\n"
    "  --rtol X      elements may be X times |b| apart (both are added)\n"
    "  --part NAME   compares the tensors of this part of a checkpoint\n"
    "  --json        prints JSON\n"
    "  --help        prints this\n"
    "\n"
    "The status is 0 if they are the same, 1 if they differ, 2 if something is wrong.\n";

constexpr int kSame = 0;
constexpr int kDiffer = 1;
constexpr int kTrouble = 2;

struct Changed {
  Entry a;
  Entry b;
  Difference difference;
};

struct Report {
  std::vector<std::string> only_a;
  std::vector<std::string> only_b;
  std::vector<std::pair<Entry, Entry>> other_kind;  // of another dtype or shape
  std::vector<Changed> changed;
  std::vector<std::pair<nn::NamedValue, nn::NamedValue>> values;
  int64_t same = 0;

  bool empty() const {
    return only_a.empty() && only_b.empty() && other_kind.empty() && changed.empty() &&
           values.empty();
  }
};

double number(const Arguments& arguments, std::string_view option) {
  const std::string* text = arguments.value(option);
  if (text == nullptr) return 0;
  double value = 0;
  const char* last = text->data() + text->size();
  const auto [end, error] = std::from_chars(text->data(), last, value);
  if (error != std::errc() || end != last || !(value >= 0)) {
    throw UsageError(str_cat(option, " wants a number of 0 and more, got \"", *text, "\""));
  }
  return value;
}

// Calls only_a, only_b or both for each name, in the order of a and then of what b has besides.
template <class T, class OnlyA, class OnlyB, class Both>
void by_name(const std::vector<T>& a, const std::vector<T>& b, OnlyA&& only_a, OnlyB&& only_b,
             Both&& both) {
  std::map<std::string, const T*> rest;
  for (const T& item : b) rest[item.name] = &item;
  for (const T& item : a) {
    const auto found = rest.find(item.name);
    if (found == rest.end()) {
      only_a(item.name);
      continue;
    }
    both(item, *found->second);
    rest.erase(found);
  }
  for (const T& item : b) {
    if (rest.contains(item.name)) only_b(item.name);
  }
}

Report compare(const Archive& a, const Archive& b, const Tolerance& tolerance) {
  Report report;
  const auto only_a = [&](const std::string& name) { report.only_a.push_back(name); };
  const auto only_b = [&](const std::string& name) { report.only_b.push_back(name); };
  by_name(a.tensors, b.tensors, only_a, only_b, [&](const Entry& x, const Entry& y) {
    if (x.dtype != y.dtype || x.shape != y.shape) {
      report.other_kind.emplace_back(x, y);
      return;
    }
    if (!x.tensor.defined()) {
      throw Error(
          ErrorCode::kMismatch, "diff",
          str_cat("cannot compare '", x.name, "' of ", x.dtype, ", which Lockstep has not"));
    }
    const Difference difference = difference_of(x.tensor, y.tensor, tolerance);
    if (difference.differing > 0) {
      report.changed.push_back({x, y, difference});
    } else {
      ++report.same;
    }
  });
  by_name(a.values, b.values, only_a, only_b,
          [&](const nn::NamedValue& x, const nn::NamedValue& y) {
            const auto* p = std::get_if<double>(&x.value);
            const auto* q = std::get_if<double>(&y.value);
            const bool both_nan = p && q && std::isnan(*p) && std::isnan(*q);
            if (x.value == y.value || both_nan) {
              ++report.same;
            } else {
              report.values.emplace_back(x, y);
            }
          });
  return report;
}

std::string text_of(const nn::Value& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::string>) {
          return printable(v);
        } else if constexpr (std::is_same_v<std::decay_t<decltype(v)>, double>) {
          return std::isfinite(v) ? ordered_json(v).dump() : number_text(Number(v));
        } else {
          return ordered_json(v).dump();
        }
      },
      value);
}

std::string kind_of(const Entry& entry) {
  return str_cat(entry.dtype, " ", to_string(entry.shape));
}

// "(1, 4)": where the element of this number is.
std::string index_of(const Entry& entry, int64_t at) {
  Shape index(entry.shape.size());
  for (size_t d = index.size(); d-- > 0;) {
    index[d] = at % entry.shape[d];
    at /= entry.shape[d];
  }
  return to_string(index);
}

void print_names(const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  std::printf("\n%s (%zu):\n", title, names.size());
  for (const std::string& name : names) std::printf("  %s\n", printable(name).c_str());
}

void print(const Report& report) {
  print_names("only in A", report.only_a);
  print_names("only in B", report.only_b);
  if (!report.other_kind.empty()) {
    Table table({{"of another dtype or shape"}, {"A"}, {"B"}});
    for (const auto& [a, b] : report.other_kind) {
      table.add({printable(a.name), kind_of(a), kind_of(b)});
    }
    std::printf("\n%s", table.to_string().c_str());
  }
  if (!report.changed.empty()) {
    Table table({{"of other values"},
                 {"dtype"},
                 {"shape"},
                 {"differing", Align::kRight},
                 {"of", Align::kRight},
                 {"max |a-b|", Align::kRight},
                 {"max |a-b|/|b|", Align::kRight},
                 {"largest at"}});
    for (const Changed& c : report.changed) {
      table.add({printable(c.a.name), c.a.dtype, to_string(c.a.shape),
                 with_commas(c.difference.differing), with_commas(c.a.tensor.numel()),
                 number_text(Number(c.difference.largest)),
                 number_text(Number(c.difference.largest_relative)),
                 index_of(c.a, c.difference.at)});
    }
    std::printf("\n%s", table.to_string().c_str());
  }
  if (!report.values.empty()) {
    Table table({{"value"}, {"A"}, {"B"}});
    for (const auto& [a, b] : report.values) {
      table.add({printable(a.name), text_of(a.value), text_of(b.value)});
    }
    std::printf("\n%s", table.to_string().c_str());
  }
}

ordered_json json_number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(number_text(Number(value)));
}

ordered_json json_of(const Report& report) {
  ordered_json root = {{"same", report.same},
                       {"only_a", report.only_a},
                       {"only_b", report.only_b},
                       {"other_kind", ordered_json::array()},
                       {"changed", ordered_json::array()},
                       {"values", ordered_json::array()}};
  for (const auto& [a, b] : report.other_kind) {
    root["other_kind"].push_back({{"name", a.name}, {"a", kind_of(a)}, {"b", kind_of(b)}});
  }
  for (const Changed& c : report.changed) {
    root["changed"].push_back({{"name", c.a.name},
                               {"differing", c.difference.differing},
                               {"elements", c.a.tensor.numel()},
                               {"max_abs", json_number(c.difference.largest)},
                               {"max_rel", json_number(c.difference.largest_relative)},
                               {"at", index_of(c.a, c.difference.at)}});
  }
  for (const auto& [a, b] : report.values) {
    root["values"].push_back({{"name", a.name}, {"a", text_of(a.value)}, {"b", text_of(b.value)}});
  }
  return root;
}

int diff_files(const Arguments& arguments, const Tolerance& tolerance) {
  Archive a = read_archive(arguments.files[0]);
  Archive b = read_archive(arguments.files[1]);
  const std::string* part = arguments.value("--part");
  const bool mixed = (a.format == Format::kCheckpoint) != (b.format == Format::kCheckpoint);
  for (Archive* archive : {&a, &b}) {
    if (archive->format == Format::kCheckpoint && (mixed || part != nullptr)) {
      keep_part(*archive, part != nullptr ? *part : "");
    }
  }
  // The only tensor of an .npy file has the file's name.
  if (a.format == Format::kNpy && b.format == Format::kNpy) a.tensors[0].name = b.tensors[0].name;
  const Report report = compare(a, b, tolerance);
  if (arguments.has("--json")) {
    std::puts(json_of(report).dump(2, ' ', false, ordered_json::error_handler_t::replace).c_str());
  } else if (!report.empty()) {
    std::printf("A: %s\nB: %s\n", printable(a.path.string()).c_str(),
                printable(b.path.string()).c_str());
    print(report);
    std::printf("\n%s the same\n", with_commas(report.same).c_str());
  }
  return report.empty() ? kSame : kDiffer;
}

int diff(const std::vector<std::string>& list) {
  const Arguments arguments = parse_arguments(list, 2, {"--json"}, {"--atol", "--rtol", "--part"});
  if (arguments.has("--help")) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const Tolerance tolerance{number(arguments, "--atol"), number(arguments, "--rtol")};
  try {
    return diff_files(arguments, tolerance);
  } catch (const Error& error) {
    std::fprintf(stderr, "lockstep diff: %s\n", error.what());
    return kTrouble;
  }
}

}  // namespace

const Command kDiffCommand{"diff", "compares two checkpoints or files of tensors", kUsage, diff};

}  // namespace lockstep::cli
