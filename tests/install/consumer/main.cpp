// A program that uses an installed Lockstep: one include, one library.
#include <cmath>
#include <cstdio>

#include "lockstep/lockstep.h"

int main() {
  using namespace lockstep;
  const Tensor x = Tensor::from({1.0f, 2.0f, 3.0f}, {3});
  Tensor w = Tensor::from({0.5f, -1.0f, 2.0f}, {3});
  w.set_requires_grad(true);
  sum(w * x * x).backward();
  for (int i = 0; i < 3; ++i) {
    const float want = static_cast<float>((i + 1) * (i + 1));
    const float got = w.grad().data<float>()[i];
    if (std::abs(got - want) > 1e-6f) {
      std::fprintf(stderr, "gradient %d: want %g, got %g\n", i, want, got);
      return 1;
    }
  }
  std::puts("the installed Lockstep differentiates");
}
