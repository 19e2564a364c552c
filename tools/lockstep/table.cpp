#include "table.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lockstep/kernels/text.h"

namespace lockstep::cli {
namespace {

// Code points: most take one column.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string Table::to_string() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(width_of(column.title));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string out;
  const auto add_line = [&](const auto& cell) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) line += "  ";
      const std::string& text = cell(i);
      const std::string pad(widths[i] - width_of(text), ' ');
      line += columns_[i].align == Align::kLeft ? text + pad : pad + text;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  add_line([&](size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_) add_line([&](size_t i) -> const std::string& { return row[i]; });
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += absl::StrFormat("\\x%02x", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string with_commas(int64_t number) {
  std::string text = std::to_string(number);
  const size_t digits = number < 0 ? 1 : 0;
  for (size_t at = text.size(); at > digits + 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string counted(int64_t count, std::string_view noun) {
  return str_cat(with_commas(count), " ", noun, count == 1 ? "" : "s");
}

}  // namespace lockstep::cli
