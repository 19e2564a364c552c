#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace lockstep {

// Abseil's string_view is a type of its own where Abseil was built for C++14, as Debian's is.
inline absl::string_view as_absl(std::string_view text) { return {text.data(), text.size()}; }

// absl::StrCat that takes std::string_view too.
template <class... Parts>
std::string str_cat(const Parts&... parts) {
  const auto convert = []<class T>(const T& part) -> decltype(auto) {
    if constexpr (std::same_as<T, std::string_view>) {
      return as_absl(part);
    } else {
      return (part);
    }
  };
  return absl::StrCat(convert(parts)...);
}

}  // namespace lockstep
