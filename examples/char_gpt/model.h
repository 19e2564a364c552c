#pragma once

#include <memory>

#include "lockstep/nn/module.h"

struct GptOptions {
  int64_t vocabulary = 128;  // different tokens
  int64_t context = 128;     // tokens that are seen at a time
  int64_t width = 256;
  int64_t layers = 4;
  int64_t heads = 8;  // divides width
  bool tied = false;  // the head is the token embedding's weight, without a bias, as in GPT-2
};

// A decoder-only transformer (Radford et al., 2019): token and position embeddings, blocks of
// causal attention and a GELU MLP of four times the width, each with a layer norm before and a sum
// after, and a linear head. Takes tokens (N, T), i64, T at most `context`, and gives logits
// (N, T, vocabulary). Weights come from the default generator.
std::shared_ptr<lockstep::nn::Module> make_gpt(const GptOptions& options);
