#include "layout_rules.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace lockstep::layout {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostLines = 600;
constexpr std::string_view kUmbrella = "nn/lockstep.h";
constexpr std::string_view kPrefix = "lockstep/";

// A library's folder, and the folders whose headers it may include.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"kernels", {"kernels"}},
    {"core", {"kernels", "core"}},
    {"comm", {"kernels", "comm"}},
    {"nn", {"kernels", "core", "comm", "nn"}},
};

struct Include {
  std::string name;
  bool quoted;
};

std::vector<Include> includes_of(const std::string& text) {
  static const std::regex pattern(R"(^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"])",
                                  std::regex::multiline);
  std::vector<Include> includes;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    includes.push_back({(*match)[2], (*match)[1] == "\""});
  }
  return includes;
}

std::string folder_of(const std::string& path) { return path.substr(0, path.find('/')); }
std::string name_of(const std::string& path) { return fs::path(path).filename(); }

bool is_header(const std::string& path) { return path.ends_with(".h") || path.ends_with(".cuh"); }

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The path of the header that "lockstep/…" stands for.
std::string header_path(const std::string& include) {
  const std::string rest = include.substr(kPrefix.size());
  return rest == "lockstep.h" ? std::string(kUmbrella) : rest;
}

std::string say(const std::string& path, const std::string& include, std::string_view fault) {
  std::ostringstream sentence;
  sentence << path << " includes " << include << ": " << fault;
  return sentence.str();
}

void check_order(const std::string& path, const Include& include, Faults& faults) {
  const auto rule = kMayInclude.find(folder_of(path));
  if (rule == kMayInclude.end()) return;
  if (!include.name.starts_with(kPrefix)) {
    if (include.quoted && !include.name.starts_with("absl/")) {
      faults.push_back(say(path, include.name,
                           "own headers begin with lockstep/, others stand in "
                           "angle brackets"));
    }
    return;
  }
  const std::string target = header_path(include.name);
  if (target == kUmbrella) {
    faults.push_back(say(path, include.name, "it is for programs, not for the libraries"));
  } else if (!rule->second.contains(folder_of(target))) {
    faults.push_back(say(path, include.name, rule->first + "/ may not know " + folder_of(target)));
  }
}

void check_devices(const std::string& path, const Include& include, Faults& faults) {
  const std::string folder = folder_of(path);
  const std::string name = name_of(path);
  if (include.name == "cuda_runtime.h") {
    const bool transport = folder == "comm" && (contains(name, "cuda") || contains(name, "nccl"));
    if (folder != "kernels" && !transport && !path.starts_with("tests/simt/")) {
      faults.push_back(
          say(path, include.name, "it is for kernels/ and for comm/'s CUDA and NCCL transports"));
    }
  } else if (include.name == "nccl.h" && folder != "comm" && !path.starts_with("tests/simt/")) {
    faults.push_back(say(path, include.name, "it is for comm/"));
  } else if ((include.name == "cublasLt.h" || include.name.starts_with("cudnn")) &&
             !path.starts_with("kernels/cuda/")) {
    faults.push_back(say(path, include.name, "it is for kernels/cuda/"));
  }
}

}  // namespace

Sources read_sources(const std::string& root) {
  static const std::set<std::string> kEndings = {".h", ".cpp", ".cu", ".cuh", ".cmake", ".txt"};
  Sources sources;
  for (const char* folder :
       {"kernels", "core", "comm", "nn", "bench", "examples", "tools", "tests", "third_party"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(root) / folder)) {
      if (!entry.is_regular_file() || !kEndings.contains(entry.path().extension())) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      sources[fs::relative(entry.path(), root)] =
          std::string(std::istreambuf_iterator<char>(file), {});
    }
  }
  return sources;
}

Faults include_faults(const Sources& sources) {
  Faults faults;
  for (const auto& [path, text] : sources) {
    for (const Include& include : includes_of(text)) {
      check_order(path, include, faults);
      check_devices(path, include, faults);
    }
  }
  return faults;
}

std::set<std::string> public_headers(const Sources& sources) {
  std::set<std::string> reached;
  std::vector<std::string> open = {std::string(kUmbrella)};
  while (!open.empty()) {
    const std::string path = open.back();
    open.pop_back();
    const auto source = sources.find(path);
    if (source == sources.end() || !reached.insert(path).second) continue;
    for (const Include& include : includes_of(source->second)) {
      if (include.name.starts_with(kPrefix)) open.push_back(header_path(include.name));
    }
  }
  return reached;
}

Faults public_api_faults(const Sources& sources) {
  const std::set<std::string> api = public_headers(sources);
  Faults faults;
  for (const auto& [path, text] : sources) {
    for (const Include& include : includes_of(text)) {
      const bool own = include.name.starts_with(kPrefix);
      // The standard library's headers have neither a folder nor an ending. OpenMP's comes with the
      // compiler and lockstep::kernels links it publicly.
      const bool foreign = !own && !include.name.starts_with("absl/") && include.name != "omp.h" &&
                           include.name.find_first_of("./") != std::string::npos;
      if (api.contains(path) && foreign) {
        faults.push_back(say(path, include.name, "a public header may not"));
      }
      if (folder_of(path) == "examples" && own && !api.contains(header_path(include.name))) {
        faults.push_back(say(path, include.name, "it is not reached from lockstep/lockstep.h"));
      }
    }
  }
  return faults;
}

Faults form_faults(const Sources& sources) {
  Faults faults;
  for (const auto& [path, text] : sources) {
    const int64_t lines = std::count(text.begin(), text.end(), '\n');
    if (lines > kMostLines) {
      faults.push_back(path + " has " + std::to_string(lines) + " lines; at most " +
                       std::to_string(kMostLines) + " fit in one file");
    }
    if (is_header(path) && !contains(text, "#pragma once")) {
      faults.push_back(path + " is a header without #pragma once");
    }
  }
  return faults;
}

std::string first_cpp_block(const std::string& markdown) {
  std::istringstream lines(markdown);
  std::string line, block;
  bool inside = false;
  while (std::getline(lines, line)) {
    if (inside && line == "```") return block;
    if (inside) block += line + '\n';
    if (line == "```cpp") inside = true;
  }
  throw std::runtime_error("want a block between lines ```cpp and ```, found none that is closed");
}

}  // namespace lockstep::layout
