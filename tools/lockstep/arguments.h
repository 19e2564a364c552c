#pragma once

#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::cli {

// A command line of files and options in any order; "--" ends the options.
struct Arguments {
  std::vector<std::string> files;
  std::set<std::string, std::less<>> flags;                // options without a value
  std::map<std::string, std::string, std::less<>> values;  // options with one

  bool has(std::string_view option) const { return flags.contains(option); }
  // nullptr where the option was not given.
  const std::string* value(std::string_view option) const;
};

// Throws UsageError for an option that is in neither list (--help is a flag of every command) or
// lacks its value, and, but for --help, unless `files` files were named.
Arguments parse_arguments(const std::vector<std::string>& arguments, size_t files,
                          std::initializer_list<std::string_view> flags,
                          std::initializer_list<std::string_view> values);

}  // namespace lockstep::cli
