// What sending fewer bytes costs in learning: trains one network on Fashion-MNIST with plain
// averages and with each of Lockstep's communication hooks, and draws the losses side by side.
//
//   lockstep run -n 2 comm_hooks_example --steps 400 --out docs/comm-hooks.svg
//
// Ends with 1 unless every hook's loss ends within 1.5 times the plain one's.
#include <algorithm>
#include <cstdio>
#include <fstream>

#include "arguments.h"
#include "lockstep/lockstep.h"
#include "train_fashion_mnist/chart.h"
#include "train_fashion_mnist/model.h"
#include "training_pictures.h"

using namespace lockstep;

namespace {

constexpr int64_t kBatch = 64;  // of each rank
constexpr const char* kUsage =
    "comm_hooks_example [--steps 150] [--data DIRECTORY] [--out CURVES.svg]\n";

struct Way {
  std::string name;
  std::shared_ptr<nn::CommHook> hook;  // null: plain
};

std::vector<Way> ways() {
  return {{"plain", nullptr},
          {"bf16", std::make_shared<nn::CastHook>(DType::kBF16)},
          {"8-bit blocks", std::make_shared<nn::BlockQuantHook>()},
          {"top 1 %", std::make_shared<nn::TopKHook>(0.01)},
          {"PowerSGD, rank 2", std::make_shared<nn::PowerSgdHook>(nn::PowerSgdOptions{.rank = 2})}};
}

// The loss of each step over all ranks, smoothed. Every way starts from the same weights and sees
// the same pictures.
Series train(const Way& way, const std::shared_ptr<nn::FashionMnist>& data, int steps,
             const std::shared_ptr<comm::Communicator>& group) {
  PictureBatches batches(data, group, kBatch);
  manual_seed(1);
  nn::DataParallel model(make_model("mlp"), group);
  model.set_comm_hook(way.hook);
  nn::SGD optimizer(model.named_parameters(), {.lr = 0.05, .momentum = 0.9});
  Series curve{way.name, {}};
  double recent = 0;
  for (int step = 1; step <= steps; ++step) {
    const nn::Batch batch = batches.next();
    const Tensor loss = cross_entropy(model(batch.input), batch.target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    const double mean_loss = nn::all_reduce(loss.detach(), group, comm::ReduceOp::kAvg).item();
    recent = step == 1 ? mean_loss : recent + 0.05 * (mean_loss - recent);
    curve.points.emplace_back(step, recent);
  }
  model.check_in_lockstep();  // whatever is lost on the way, all ranks lose the same
  return curve;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments(argc, argv, kUsage);
  const int steps = arguments.number("--steps", 150);
  const std::string out = arguments.text("--out", "");
  const auto group = comm::init();
  const auto data = training_pictures(arguments);
  std::vector<Series> curves;
  bool learned = true;
  for (const Way& way : ways()) {
    curves.push_back(train(way, data, steps, group));
    const double last = curves.back().points.back().second;
    learned = learned && last < 1.5 * curves.front().points.back().second;
    if (group->rank() == 0) std::printf("%-18s loss %.4f\n", way.name.c_str(), last);
  }
  if (group->rank() == 0 && !out.empty()) {
    const std::string title =
        "An MLP on Fashion-MNIST, " + std::to_string(group->size()) + " ranks, by what is sent";
    std::ofstream file(out, std::ios::trunc);
    file << chart_svg(title, {{"Training loss, smoothed", "step", false, curves}});
    check(file.flush().good(), "comm_hooks", [&] { return "'" + out + "' cannot be written"; });
  }
  return learned ? 0 : 1;
}
