#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::cli {

// A command line that cannot be understood: main prints it with the command's usage, and ends with
// kUsageStatus.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr int kUsageStatus = 2;

// A subcommand of `lockstep`: its name, one line about it, its own --help, and what it does with
// the arguments after its name. `main` returns the program's exit status; it may throw UsageError
// and lockstep::Error. One file per command, and one line in the list in main.cpp.
struct Command {
  const char* name;
  const char* summary;
  const char* usage;
  int (*main)(const std::vector<std::string>& arguments);
};

extern const Command kRunCommand;      // run.cpp
extern const Command kDoctorCommand;   // doctor.cpp
extern const Command kInspectCommand;  // inspect.cpp
extern const Command kConvertCommand;  // convert.cpp
extern const Command kDiffCommand;     // diff.cpp

}  // namespace lockstep::cli
