#pragma once

#include <string>
#include <vector>

namespace bench {

// Runs `command` (a program's path and its arguments) as each rank of a job of `ranks` processes
// on this machine, one thread each, and returns what each wrote to standard output, by rank. What
// they write to standard error goes to ours. The ranks find each other through Lockstep's
// environment, and through torchrun's for other people's programs.
//
// `environment` is added to theirs (NAME=value).
//
// Throws lockstep::Error that names the first rank to fail; the others have been killed then.
std::vector<std::string> run_job(int ranks, const std::vector<std::string>& command,
                                 const std::vector<std::string>& environment = {});

// The path of the program that is running.
std::string this_program();

}  // namespace bench
