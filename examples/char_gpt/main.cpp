// A small GPT that learns to write, character by character: from the words of Webster's dictionary
// of 1934 (Debian's package miscfiles), or from any text of yours.
//
//   lockstep run -n 2 char_gpt_example --steps 2000 --text my.txt
//
// Ends with 1 unless the loss fell to less than three quarters of what it was.
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "../arguments.h"
#include "lockstep/lockstep.h"
#include "model.h"

using namespace lockstep;

namespace {

constexpr const char* kDefaultText = "/usr/share/dict/web2";
constexpr const char* kUsage =
    "char_gpt_example [--steps 300] [--text FILE] [--batch 8] [--context 64] [--width 64] "
    "[--layers 2]\n"
    "                 [--sample 200]\n";

// A text as numbers: one for each different byte in it.
class Text {
 public:
  explicit Text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    check(!file.bad() && bytes.size() > 1, "char_gpt", [&] {
      return "want a text in '" + path +
             "': give a file with --text, or install Debian's package miscfiles";
    });
    std::array<int64_t, 256> numbers;
    numbers.fill(-1);
    for (const char byte : bytes) numbers[static_cast<unsigned char>(byte)] = 0;
    for (size_t byte = 0; byte < numbers.size(); ++byte) {
      if (numbers[byte] < 0) continue;
      numbers[byte] = static_cast<int64_t>(alphabet_.size());
      alphabet_ += static_cast<char>(byte);
    }
    std::vector<int64_t> tokens;
    for (const char byte : bytes) tokens.push_back(numbers[static_cast<unsigned char>(byte)]);
    tokens_ = Tensor::from(tokens, {static_cast<int64_t>(tokens.size())});
  }

  int64_t size() const { return tokens_.numel(); }
  int64_t vocabulary() const { return static_cast<int64_t>(alphabet_.size()); }
  char letter(int64_t token) const { return alphabet_[static_cast<size_t>(token)]; }

  // `count` places drawn from the default generator: tokens (count, length), and at each place the
  // token that comes next.
  nn::Batch draw(int64_t count, int64_t length) const {
    const Tensor starts = randint(0, size() - length, {count, 1});
    const Tensor places = starts + Tensor::arange(length);
    return {take(places), take(places + 1)};
  }

 private:
  Tensor take(const Tensor& places) const {
    return reshape(index_select(tokens_, 0, flatten(places)), places.shape());
  }

  std::string alphabet_;
  Tensor tokens_;
};

// Goes on after a line's end, each letter drawn with the probability that the model gives it.
std::string sample(nn::Module& net, const Text& text, int64_t context, int letters) {
  NoGrad no_grad;
  std::vector<int64_t> tokens = text.draw(1, 1).input.to_vector<int64_t>();
  std::string out;
  for (int i = 0; i < letters; ++i) {
    const auto seen = std::min<int64_t>(context, static_cast<int64_t>(tokens.size()));
    const std::vector<int64_t> last(tokens.end() - seen, tokens.end());
    const Tensor logits = net.forward(Tensor::from(last, {1, seen}));
    const Tensor weights = softmax(reshape(slice(logits, 1, seen - 1, seen), {-1}), 0);
    double left = rand({}).item();
    int64_t next = 0;
    for (const float weight : weights.to_vector<float>()) {
      left -= weight;
      if (left < 0 || next + 1 == text.vocabulary()) break;
      ++next;
    }
    tokens.push_back(next);
    out += text.letter(next);
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments(argc, argv, kUsage);
  const int steps = arguments.number("--steps", 300);
  const int64_t batch = arguments.number("--batch", 8);
  const int64_t context = arguments.number("--context", 64);
  const auto group = comm::init();
  const Text text(arguments.text("--text", kDefaultText));
  check(text.size() > context, "char_gpt", "want a text that is longer than --context");

  manual_seed(1);
  const auto net = make_gpt({.vocabulary = text.vocabulary(),
                             .context = context,
                             .width = arguments.number("--width", 64),
                             .layers = arguments.number("--layers", 2),
                             .heads = 4});
  nn::DataParallel model(net, group);
  // Each rank keeps its share of AdamW's state.
  nn::ShardedOptimizer optimizer(
      std::make_unique<nn::AdamW>(net->named_parameters(),
                                  nn::AdamWOptions{.lr = 3e-3, .weight_decay = 0.1}),
      model);
  nn::CosineAnnealingLR schedule(optimizer, {.t_max = steps, .warmup_steps = steps / 10});
  if (group->rank() == 0) {
    std::printf("%lld characters, %lld different ones; %lld parameters\n",
                static_cast<long long>(text.size()), static_cast<long long>(text.vocabulary()),
                static_cast<long long>(net->parameter_count()));
  }
  manual_seed(2 + static_cast<uint64_t>(group->rank()));  // places of this rank's own
  double first = 0, recent = 0;
  for (int step = 1; step <= steps; ++step) {
    const nn::Batch part = text.draw(batch, context);
    const Tensor logits = model(part.input);
    const Tensor loss = cross_entropy(reshape(logits, {batch * context, -1}), flatten(part.target));
    optimizer.zero_grad();
    loss.backward();
    optimizer.clip_grad_norm(1);
    optimizer.step();
    schedule.step();
    const double mean_loss = nn::all_reduce(loss.detach(), group, comm::ReduceOp::kAvg).item();
    if (step == 1) first = recent = mean_loss;
    recent += 0.1 * (mean_loss - recent);
    if ((step % 100 == 0 || step == steps) && group->rank() == 0) {
      std::printf("%d: loss %.3f\n", step, recent);
    }
  }
  model.check_in_lockstep();
  std::printf("%.2f MB of AdamW's state are on rank %d\n",
              static_cast<double>(optimizer.state_bytes()) / 1e6, group->rank());
  if (group->rank() == 0) {
    net->eval();
    std::printf("--\n%s\n", sample(*net, text, context, arguments.number("--sample", 200)).c_str());
  }
  return recent < 0.75 * first ? 0 : 1;
}
