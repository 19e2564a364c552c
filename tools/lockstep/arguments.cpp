#include "arguments.h"

#include <algorithm>

#include "commands.h"
#include "lockstep/kernels/text.h"

namespace lockstep::cli {

const std::string* Arguments::value(std::string_view option) const {
  const auto found = values.find(option);
  return found == values.end() ? nullptr : &found->second;
}

Arguments parse_arguments(const std::vector<std::string>& arguments, size_t files,
                          std::initializer_list<std::string_view> flags,
                          std::initializer_list<std::string_view> values) {
  const auto among = [](std::initializer_list<std::string_view> list, std::string_view option) {
    return std::find(list.begin(), list.end(), option) != list.end();
  };
  Arguments parsed;
  bool options_ended = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (options_ended || !argument.starts_with("-") || argument == "-") {
      parsed.files.push_back(argument);
    } else if (argument == "--") {
      options_ended = true;
    } else if (argument == "--help" || argument == "-h") {
      parsed.flags.insert("--help");
    } else if (among(flags, argument)) {
      parsed.flags.insert(argument);
    } else if (among(values, argument)) {
      if (i + 1 == arguments.size()) throw UsageError(str_cat(argument, " wants a value"));
      parsed.values[argument] = arguments[++i];
    } else {
      throw UsageError(str_cat("there is no option \"", argument, "\""));
    }
  }
  if (!parsed.has("--help") && parsed.files.size() != files) {
    throw UsageError(
        str_cat("want ", files, files == 1 ? " file" : " files", ", got ", parsed.files.size()));
  }
  return parsed;
}

}  // namespace lockstep::cli
