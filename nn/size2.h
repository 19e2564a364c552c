#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace lockstep::nn {

// Two sizes, rows then columns; one number stands for both: 3, {3, 5}.
struct Size2 {
  int64_t rows;
  int64_t columns;

  Size2(int64_t both) : rows(both), columns(both) {}  // NOLINT: implicit, so that callers write 3
  Size2(int64_t row_size, int64_t column_size) : rows(row_size), columns(column_size) {}

  std::array<int64_t, 2> array() const { return {rows, columns}; }
  std::string to_string() const { return absl::StrCat("(", rows, ", ", columns, ")"); }
  bool at_least(int64_t least) const { return rows >= least && columns >= least; }

  friend bool operator==(const Size2&, const Size2&) = default;
};

}  // namespace lockstep::nn
