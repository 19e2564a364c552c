// The command-line program `lockstep`: finds the subcommand and turns errors into an exit status.

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "commands.h"
#include "lockstep/kernels/error.h"

namespace lockstep::cli {
namespace {

const Command* const kCommands[] = {&kRunCommand, &kDoctorCommand, &kInspectCommand,
                                    &kConvertCommand, &kDiffCommand};

void print_usage(std::FILE* to) {
  std::fprintf(to, "usage: lockstep COMMAND [OPTIONS]\n\ncommands:\n");
  for (const Command* command : kCommands) {
    std::fprintf(to, "  %-10s %s\n", command->name, command->summary);
  }
  std::fprintf(to,
               "\n  lockstep COMMAND --help   what a command takes\n"
               "  lockstep --version        the version of Lockstep\n");
}

int main_with(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    print_usage(stderr);
    return kUsageStatus;
  }
  const std::string& first = arguments[0];
  if (first == "--help" || first == "-h" || first == "help") {
    print_usage(stdout);
    return 0;
  }
  if (first == "--version") {
    std::printf("lockstep %s\n", LOCKSTEP_VERSION);
    return 0;
  }
  for (const Command* command : kCommands) {
    if (first != command->name) continue;
    try {
      return command->main({arguments.begin() + 1, arguments.end()});
    } catch (const UsageError& error) {
      std::fprintf(stderr, "lockstep %s: %s\n\n%s", command->name, error.what(), command->usage);
      return kUsageStatus;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "lockstep %s: %s\n", command->name, error.what());
      return 1;
    }
  }
  std::fprintf(stderr, "lockstep: there is no %s \"%s\"\n\n",
               first.starts_with("-") ? "option" : "command", first.c_str());
  print_usage(stderr);
  return kUsageStatus;
}

}  // namespace
}  // namespace lockstep::cli

int main(int argc, char** argv) {
  // A program started with its standard streams closed would give their numbers to other files.
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
  return lockstep::cli::main_with({argv + 1, argv + argc});
}
