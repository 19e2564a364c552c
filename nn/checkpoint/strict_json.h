#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

namespace lockstep::nn {

// Reads one JSON text (RFC 8259), and refuses what the standard leaves open: a member named twice,
// more than 8 levels, invalid UTF-8, anything after the text. Throws Error(kCorrupt) that names
// `what`, the file or part of a file that is read, and `op`, the public call that reads it.
nlohmann::json parse_strict_json(std::string_view text, std::string_view what,
                                 std::string_view op = "load_checkpoint");

// The member `key`. Each throws Error(kCorrupt) that names `what` where there is none or it has
// another type.
const nlohmann::json& json_member(const nlohmann::json& object, const char* key,
                                  std::string_view what);
uint64_t json_unsigned(const nlohmann::json& object, const char* key, std::string_view what);
const std::string& json_string(const nlohmann::json& object, const char* key,
                               std::string_view what);
const nlohmann::json::array_t& json_array(const nlohmann::json& object, const char* key,
                                          std::string_view what);
// 16 hexadecimal digits.
uint64_t json_hex(const nlohmann::json& text, std::string_view what);

}  // namespace lockstep::nn
