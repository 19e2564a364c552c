#pragma once

#include <string_view>

namespace lockstep::nn {

// Whether every byte belongs to a well-formed UTF-8 sequence (RFC 3629, section 4): no overlong
// forms, no surrogates, nothing over U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace lockstep::nn
