#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep {

// Einstein's sum, as NumPy and PyTorch write it: one letter for each dimension of each operand;
// letters that the result does not name are summed over.
//
//   einsum("bhid,bhjd->bhij", {q, k})    q times k transposed, for each b and h
//   einsum("ii->i", {x})                 the diagonal
//   einsum("...ij,jk", {x, w})           a product for all leading dimensions
//
// Without "->" the result has the letters that occur once, in alphabetical order, after those of
// "...". Operands are contracted from the left to the right, each pair by one batched matmul;
// sizes of 1 broadcast. Throws Error(kInvalidArgument) that quotes the equation.
Tensor einsum(std::string_view equation, std::span<const Tensor> operands);
inline Tensor einsum(std::string_view equation, std::initializer_list<Tensor> operands) {
  return einsum(equation, std::span<const Tensor>(operands.begin(), operands.size()));
}

}  // namespace lockstep
