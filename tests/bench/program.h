#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

// Programs of bench/ from outside: what they print and write, and how they end.

struct Ended {
  int status = -1;
  std::string text;  // of both its streams
};

inline Ended run_program(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {};
  Ended ended;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    ended.text += static_cast<char>(c);
  }
  const int status = pclose(pipe);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  return ended;
}

// A file name of this process's own.
inline std::string json_path(const std::string& program) {
  return std::filesystem::temp_directory_path() /
         (program + "-" + std::to_string(getpid()) + ".json");
}

// Reads and removes it.
inline nlohmann::json take_json(const std::string& path) {
  std::ifstream file(path);
  nlohmann::json written = nlohmann::json::parse(file);
  file.close();
  std::filesystem::remove(path);
  return written;
}
