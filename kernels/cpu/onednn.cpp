#include "lockstep/kernels/cpu/onednn.h"

#include <omp.h>

#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels::onednn {

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

dnnl::memory::desc describe(const Shape& shape, const Strides& strides) {
  return {dnnl::memory::dims(shape.begin(), shape.end()), dnnl::memory::data_type::f32,
          dnnl::memory::dims(strides.begin(), strides.end())};
}

int announce_threads() {
  const int threads = num_threads();
  if (omp_get_max_threads() != threads) omp_set_num_threads(threads);
  return threads;
}

void execute(const dnnl::primitive& primitive, const Arguments& arguments) {
  thread_local dnnl::stream stream(engine());
  announce_threads();
  primitive.execute(stream, arguments);
  stream.wait();
}

void append(std::string& key, const Shape& numbers) {
  const auto size = static_cast<int64_t>(numbers.size());
  key.append(reinterpret_cast<const char*>(&size), sizeof size);
  key.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t));
}

}  // namespace lockstep::kernels::onednn
