#include "lockstep/core/ops/einsum.h"

#include <algorithm>
#include <map>

#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/matmul.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

// A letter, or kEllipsisEnd - k for the k-th dimension from the end that "..." stands for, so that
// these sort before letters and in order.
using Labels = std::vector<int>;
constexpr int kEllipsisEnd = 0;

// A tensor with a label for each of its dimensions, no label twice.
struct Term {
  Tensor x;
  Labels labels;
};

bool has(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

class Equation {
 public:
  Equation(std::string_view text, std::span<const Tensor> operands) : text_(text) {
    std::string squeezed;
    for (char c : text) {
      if (c != ' ') squeezed += c;
    }
    const size_t arrow = squeezed.find("->");
    std::string inputs = squeezed.substr(0, arrow);
    want(std::count(inputs.begin(), inputs.end(), ',') + 1 == static_cast<int64_t>(operands.size()),
         "as many operands as the equation has");
    for (const Tensor& x : operands) {
      const size_t end = std::min(inputs.find(','), inputs.size());
      terms_.push_back({x, labels_of(inputs.substr(0, end), x.dim())});
      inputs.erase(0, end + 1);
    }
    if (arrow != std::string::npos) {
      result_ = labels_of(squeezed.substr(arrow + 2), -1);
    } else {
      std::map<int, int> counts;
      for (const Term& term : terms_) {
        for (int label : term.labels) ++counts[label];
      }
      for (const auto& [label, count] : counts) {
        if (count == 1 || label <= kEllipsisEnd) result_.push_back(label);
      }
    }
    for (size_t i = 0; i < result_.size(); ++i) {
      const bool known = std::any_of(terms_.begin(), terms_.end(),
                                     [&](const Term& t) { return has(t.labels, result_[i]); });
      want(known && std::count(result_.begin(), result_.end(), result_[i]) == 1,
           "each letter of the result once, and in an operand");
    }
  }

  Tensor run() {
    for (Term& term : terms_) take_diagonals(term);
    Term left = terms_[0];
    for (size_t i = 1; i < terms_.size(); ++i) {
      Labels needed = result_;
      for (size_t j = i + 1; j < terms_.size(); ++j) {
        needed.insert(needed.end(), terms_[j].labels.begin(), terms_[j].labels.end());
      }
      left = contract(left, terms_[i], needed);
    }
    left = sum_out(left, result_);
    return ordered(left, result_);
  }

 private:
  void want(bool ok, std::string_view what) const {
    check(ok, "einsum", [&] { return str_cat("want ", what, ", got '", text_, "'"); });
  }

  // `rank` is the operand's number of dimensions, -1 for the result.
  Labels labels_of(const std::string& word, int64_t rank) {
    Labels out;
    for (size_t i = 0; i < word.size(); ++i) {
      const char c = word[i];
      if (c == '.') {
        want(word.compare(i, 3, "...") == 0 && std::count(word.begin(), word.end(), '.') == 3,
             "at most one '...' in each operand");
        if (rank >= 0) {
          const int64_t hidden = rank - (static_cast<int64_t>(word.size()) - 3);
          want(hidden >= 0, "no more letters than dimensions");
          most_hidden_ = std::max(most_hidden_, hidden);
          for (int64_t k = hidden; k > 0; --k)
            out.push_back(kEllipsisEnd - static_cast<int>(k - 1));
        } else {
          for (int64_t k = most_hidden_; k > 0; --k) {
            out.push_back(kEllipsisEnd - static_cast<int>(k - 1));
          }
        }
        i += 2;
      } else {
        want((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'), "letters, ',', '...' and '->'");
        out.push_back(c);
      }
    }
    want(rank < 0 || static_cast<int64_t>(out.size()) == rank,
         "one letter for each dimension of each operand");
    return out;
  }

  void take_diagonals(Term& term) const {
    for (size_t i = 0; i < term.labels.size(); ++i) {
      for (size_t j = i + 1; j < term.labels.size(); ++j) {
        if (term.labels[i] != term.labels[j]) continue;
        want(term.x.shape()[i] == term.x.shape()[j],
             "equal sizes where an operand has a letter twice");
        const int label = term.labels[i];
        term.x = diagonal(term.x, 0, static_cast<int64_t>(i), static_cast<int64_t>(j));
        term.labels.erase(term.labels.begin() + static_cast<int64_t>(j));
        term.labels.erase(term.labels.begin() + static_cast<int64_t>(i));
        term.labels.push_back(label);
        return take_diagonals(term);
      }
    }
  }

  // The term summed over what nobody needs.
  static Term sum_out(const Term& term, const Labels& needed) {
    Shape dims;
    Term out;
    for (size_t i = 0; i < term.labels.size(); ++i) {
      if (has(needed, term.labels[i])) {
        out.labels.push_back(term.labels[i]);
      } else {
        dims.push_back(static_cast<int64_t>(i));
      }
    }
    out.x = dims.empty() ? term.x : sum(term.x, dims);
    return out;
  }

  // The term's tensor with its dimensions in this order; labels that it lacks become size 1.
  static Tensor ordered(const Term& term, const Labels& order) {
    Shape dims;
    Shape shape;
    for (int label : order) {
      const auto at = std::find(term.labels.begin(), term.labels.end(), label);
      if (at == term.labels.end()) {
        shape.push_back(1);
        continue;
      }
      dims.push_back(at - term.labels.begin());
      shape.push_back(term.x.size(dims.back()));
    }
    return reshape(permute(term.x, dims), shape);
  }

  Term contract(const Term& first, const Term& second, const Labels& needed) const {
    Labels for_left = needed, for_right = needed;
    for_left.insert(for_left.end(), second.labels.begin(), second.labels.end());
    for_right.insert(for_right.end(), first.labels.begin(), first.labels.end());
    const Term left = sum_out(first, for_left);
    const Term right = sum_out(second, for_right);
    Labels batch, summed, only_left, only_right;
    Shape batch_shape, summed_shape, left_shape, right_shape;
    for (size_t i = 0; i < left.labels.size(); ++i) {
      const int label = left.labels[i];
      const int64_t size = left.x.shape()[i];
      const auto at = std::find(right.labels.begin(), right.labels.end(), label);
      if (at == right.labels.end()) {
        only_left.push_back(label);
        left_shape.push_back(size);
        continue;
      }
      const int64_t other = right.x.size(at - right.labels.begin());
      want(size == other || size == 1 || other == 1, "equal sizes for equal letters");
      const bool stays = has(needed, label);
      (stays ? batch : summed).push_back(label);
      (stays ? batch_shape : summed_shape).push_back(size == 1 ? other : size);
    }
    for (size_t i = 0; i < right.labels.size(); ++i) {
      if (has(left.labels, right.labels[i])) continue;
      only_right.push_back(right.labels[i]);
      right_shape.push_back(right.x.shape()[i]);
    }
    Term out;
    for (const Labels* part : {&batch, &only_left, &only_right}) {
      out.labels.insert(out.labels.end(), part->begin(), part->end());
    }
    if (summed.empty()) {
      out.x = ordered(left, out.labels) * ordered(right, out.labels);
      return out;
    }
    // (batch, left, summed) times (batch, summed, right).
    const auto matrix = [&](const Term& term, const Labels& rows, const Shape& row_shape,
                            const Labels& columns, const Shape& column_shape) {
      Labels order = batch;
      order.insert(order.end(), rows.begin(), rows.end());
      order.insert(order.end(), columns.begin(), columns.end());
      Shape wide = batch_shape;
      wide.insert(wide.end(), row_shape.begin(), row_shape.end());
      wide.insert(wide.end(), column_shape.begin(), column_shape.end());
      return reshape(expand(ordered(term, order), wide),
                     {numel(batch_shape), numel(row_shape), numel(column_shape)});
    };
    const Tensor product = matmul(matrix(left, only_left, left_shape, summed, summed_shape),
                                  matrix(right, summed, summed_shape, only_right, right_shape));
    Shape shape = batch_shape;
    shape.insert(shape.end(), left_shape.begin(), left_shape.end());
    shape.insert(shape.end(), right_shape.begin(), right_shape.end());
    out.x = reshape(product, shape);
    return out;
  }

  std::string text_;
  std::vector<Term> terms_;
  Labels result_;
  int64_t most_hidden_ = 0;  // dimensions that "..." stands for, in the operand with most
};

}  // namespace

Tensor einsum(std::string_view equation, std::span<const Tensor> operands) {
  check(!operands.empty(), "einsum", "want at least one operand, got none");
  for (const Tensor& operand : operands) check_same("einsum", operands[0], operand);
  return Equation(equation, operands).run();
}

}  // namespace lockstep
