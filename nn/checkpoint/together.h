#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/communicator.h"

// What the ranks of a group do to end a save or a load alike. A null group is this process alone.
namespace lockstep::nn {

int rank_of(const comm::Communicator* group);
int size_of_group(const comm::Communicator* group);

// Collective. Runs f, which is local: it uses no collective of the group. If it threw on any rank,
// every rank throws the error of the lowest such rank, with its code and its rank.
void together(comm::Communicator* group, std::string_view op, const std::function<void()>& f);

// Collective. Every rank gets rank 0's text.
void share_text(comm::Communicator* group, std::string& text);

// Collective. Every rank gets rank 0's bytes.
void share_bytes(comm::Communicator* group, void* data, size_t bytes);

// Collective. Every rank's words, rank after rank. REQUIRES: as many on every rank.
std::vector<uint64_t> gather_words(comm::Communicator* group, const std::vector<uint64_t>& words);

}  // namespace lockstep::nn
