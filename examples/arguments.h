#pragma once

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

// "--name value" pairs of the small examples' command lines.
class Arguments {
 public:
  // Ends the program with status 2 and the usage where a value is missing; with 0 for --help.
  Arguments(int argc, char** argv, std::string_view usage) : argc_(argc), argv_(argv) {
    for (int i = 1; i < argc; i += 2) {
      const std::string_view name = argv[i];
      if (name == "--help" || name == "-h" || name.substr(0, 2) != "--" || i + 1 == argc) {
        std::fwrite(usage.data(), 1, usage.size(), stderr);
        std::exit(name == "--help" || name == "-h" ? 0 : 2);
      }
    }
  }

  std::string text(std::string_view name, std::string fallback) const {
    for (int i = 1; i < argc_; i += 2) {
      if (argv_[i] == name) fallback = argv_[i + 1];
    }
    return fallback;
  }

  int number(std::string_view name, int fallback) const {
    const std::string given = text(name, std::to_string(fallback));
    int value = 0;
    const auto [stop, error] = std::from_chars(given.data(), given.data() + given.size(), value);
    if (error != std::errc() || *stop != '\0' || value < 1) {
      std::fprintf(stderr, "%.*s wants a number that is at least 1, got '%s'\n",
                   static_cast<int>(name.size()), name.data(), given.c_str());
      std::exit(2);
    }
    return value;
  }

 private:
  int argc_;
  char** argv_;
};
