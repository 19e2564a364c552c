#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::cli {

// Rows of text in columns that line up, for people.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // REQUIRES: as many cells as there are columns.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  // Titles and rows, each line ended by a newline.
  std::string to_string() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Text from a file as a terminal may show it: control characters are written as \x1b.
std::string printable(std::string_view text);

// "1,234,567".
std::string with_commas(int64_t number);

// "3 tensors", "1 tensor".
std::string counted(int64_t count, std::string_view noun);

}  // namespace lockstep::cli
