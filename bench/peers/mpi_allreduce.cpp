// MPI_Allreduce on the questions of bench_allreduce: f32 sum, in place, the median of the slowest
// rank's times. Prints one line per size: bytes, microseconds.
//
//   mpirun -n 2 mpi_allreduce [first bytes] [last bytes] [factor]

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

double median_of_slowest(std::vector<float>& data, int count, int iterations) {
  std::vector<double> seconds(iterations);
  for (int i = 0; i < 5; ++i) {
    MPI_Allreduce(MPI_IN_PLACE, data.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  double last = MPI_Wtime();
  for (int i = 0; i < iterations; ++i) {
    MPI_Allreduce(MPI_IN_PLACE, data.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double now = MPI_Wtime();
    seconds[i] = now - last;
    last = now;
  }
  MPI_Allreduce(MPI_IN_PLACE, seconds.data(), iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const long long first = argc > 1 ? std::atoll(argv[1]) : 4;
  const long long end = argc > 2 ? std::atoll(argv[2]) : 64LL << 20;
  const long long factor = argc > 3 ? std::max(2LL, std::atoll(argv[3])) : 4;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (long long bytes = std::max(4LL, first); bytes <= end; bytes *= factor) {
    const int count = static_cast<int>(bytes / 4);
    std::vector<float> data(count, static_cast<float>(rank + 1));
    const auto iterations = static_cast<int>(std::clamp((1LL << 30) / bytes, 10LL, 2000LL));
    const double seconds = median_of_slowest(data, count, iterations);
    if (rank == 0) std::printf("%lld %.2f\n", bytes, seconds * 1e6);
    std::fflush(stdout);
  }
  MPI_Finalize();
  return 0;
}
