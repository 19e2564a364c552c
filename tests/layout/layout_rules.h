#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace lockstep::layout {

// Source files: path from the root of the repository, such as "core/tensor.h", and text.
using Sources = std::map<std::string, std::string>;

// One sentence per fault, each naming the file and what it does wrong.
using Faults = std::vector<std::string>;

// The C++, CUDA and CMake files of the folders that the build knows.
Sources read_sources(const std::string& root);

// Which folder may include which. Libraries write every include of their own files with the prefix
// "lockstep/". cuda_runtime.h is for kernels/ and for comm/'s files named after CUDA or NCCL,
// nccl.h is for comm/.
Faults include_faults(const Sources& sources);

// The headers that a program gets from "lockstep/lockstep.h", by their paths.
std::set<std::string> public_headers(const Sources& sources);

// Public headers include nothing but Lockstep's own, Abseil's, OpenMP's and the standard library's,
// so that a program needs no other headers to compile against an installed Lockstep. Examples and
// benchmarks include public headers only; the program `lockstep` shares the rendezvous' inner
// parts.
Faults public_api_faults(const Sources& sources);

// No file has more than 600 lines, and every header guards against being included twice.
Faults form_faults(const Sources& sources);

// The text between the first ```cpp line of a Markdown file and the ``` line that ends it. Throws
// std::runtime_error if there is no such block.
std::string first_cpp_block(const std::string& markdown);

}  // namespace lockstep::layout
