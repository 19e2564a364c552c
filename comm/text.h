#pragma once

#include <charconv>
#include <concepts>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::comm {

inline void append(std::string& out, std::string_view part) { out += part; }
inline void append(std::string& out, char part) { out += part; }
template <std::integral T>
void append(std::string& out, T part) {
  out += std::to_string(part);
}
inline void append(std::string& out, double part) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", part);
  out += text;
}

// The parts one after another: concat("rank ", 3, " of ", 4). It is here because absl::StrCat takes
// no std::string_view where Abseil was built as C++14, as Debian's is.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string out;
  (append(out, parts), ...);
  return out;
}

// True where the whole text is one number that fits T; `value` is then set.
template <class T>
bool parse_number(std::string_view text, T& value) {
  T parsed{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, parsed);
  if (error != std::errc() || stop != end) return false;
  value = parsed;
  return true;
}

// "rank 2", "ranks 0, 3, 5-9": for messages. REQUIRES: ascending.
inline std::string rank_list(std::span<const int> ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last < i + 2) last = i;  // two in a row are listed, three are a range
    append(out, concat(i == 0 ? "" : ", ", ranks[i]));
    if (last > i) append(out, concat("-", ranks[last]));
    i = last + 1;
  }
  return out;
}

}  // namespace lockstep::comm
