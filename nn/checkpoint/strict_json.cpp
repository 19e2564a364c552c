#include "lockstep/nn/checkpoint/strict_json.h"

#include <string>
#include <utility>
#include <vector>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/checksum.h"

namespace lockstep::nn {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 8;

[[noreturn]] void corrupt(std::string_view what, std::string_view message,
                          std::string_view op = "load_checkpoint") {
  throw Error(ErrorCode::kCorrupt, op, str_cat(what, ": ", message));
}

// Builds the value from the parser's events (nlohmann's json_sax interface).
class Builder {
 public:
  Builder(std::string_view what, std::string_view op) : what_(what), op_(op) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(json::number_integer_t value) { return add(value); }
  bool number_unsigned(json::number_unsigned_t value) { return add(value); }
  bool number_float(json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(json::binary_t&) { corrupt(what_, "binary data in JSON", op_); }
  bool start_object(size_t) { return open(json::object()); }
  bool start_array(size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    if (open_.back()->contains(name)) {
      corrupt(what_, str_cat("the member '", name, "' is there twice"), op_);
    }
    member_ = &(*open_.back())[name];
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    corrupt(what_, str_cat("no valid JSON at its byte ", position, " (", error.what(), ")"), op_);
  }

  json take() { return std::move(root_); }

 private:
  // Where the next value goes: the root, the member whose key came, or the end of an array.
  json* place(json value) {
    json* target = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      open_.back()->push_back(nullptr);
      target = &open_.back()->back();
    } else if (!open_.empty()) {
      target = member_;
    }
    *target = std::move(value);
    return target;
  }

  bool add(json value) {
    place(std::move(value));
    return true;
  }

  bool open(json value) {
    if (open_.size() == kMaxDepth) corrupt(what_, str_cat("more than ", kMaxDepth, " levels"), op_);
    open_.push_back(place(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view what_;
  std::string_view op_;
  json root_;
  std::vector<json*> open_;  // the containers around the next value, outermost first
  json* member_ = nullptr;
};

}  // namespace

json parse_strict_json(std::string_view text, std::string_view what, std::string_view op) {
  Builder builder(what, op);
  json::sax_parse(text, &builder);
  return builder.take();
}

const json& json_member(const json& object, const char* key, std::string_view what) {
  if (!object.is_object()) corrupt(what, "want an object");
  const auto found = object.find(key);
  if (found == object.end()) corrupt(what, str_cat("the member '", key, "' is missing"));
  return *found;
}

uint64_t json_unsigned(const json& object, const char* key, std::string_view what) {
  const json& value = json_member(object, key, what);
  if (!value.is_number_unsigned()) {
    corrupt(what, str_cat("'", key, "' must be a whole number of 0 and more"));
  }
  return value.get<uint64_t>();
}

const std::string& json_string(const json& object, const char* key, std::string_view what) {
  const json& value = json_member(object, key, what);
  if (!value.is_string()) corrupt(what, str_cat("'", key, "' must be a string"));
  return value.get_ref<const std::string&>();
}

const json::array_t& json_array(const json& object, const char* key, std::string_view what) {
  const json& value = json_member(object, key, what);
  if (!value.is_array()) corrupt(what, str_cat("'", key, "' must be an array"));
  return value.get_ref<const json::array_t&>();
}

uint64_t json_hex(const json& text, std::string_view what) {
  const auto value =
      text.is_string() ? parse_hex(text.get_ref<const std::string&>()) : std::optional<uint64_t>();
  if (!value) corrupt(what, "a checksum must be a string of 16 lower-case hexadecimal digits");
  return *value;
}

}  // namespace lockstep::nn
