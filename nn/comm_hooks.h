#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/comm_hook.h"

// Ways to send fewer bytes. Each leaves the same bits on every rank. What error feedback keeps
// belongs to a parameter's name, so that it survives a change of buckets. All work where the
// gradients are; the host waits for a CUDA device where TopKHook looks at places there, and
// where PowerSgdHook orthogonalises the thin factors itself.
namespace lockstep::nn {

// Sends gradients as bf16 or f16 (half the bytes of f32). Sums are taken in f32 and divided before
// they could overflow, so that the average of 40000 and 40000 in f16 is 40000; a gradient beyond
// 65504 is infinite in f16. Gradients of other dtypes than f32 and f64 go as they are.
class CastHook : public CommHook {
 public:
  // Throws Error(kInvalidArgument) unless `dtype` is kBF16 or kF16.
  explicit CastHook(DType dtype);
  void start(GradBucket& bucket, comm::Communicator& group) override;
  void finish(GradBucket& bucket, comm::Communicator& group) override;

 private:
  struct InFlight {
    Tensor data;
    comm::Work work;
  };
  DType dtype_;
  std::map<size_t, InFlight> in_flight_;  // by bucket
};

// Sends blocks of int8 with one f32 scale each, the greatest magnitude of the block / 127 (as in
// Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022, with a linear code): about
// a quarter of f32's bytes to each other rank. What rounding loses is added to the next gradient
// (Seide et al., "1-Bit Stochastic Gradient Descent", 2014).
class BlockQuantHook : public CommHook {
 public:
  // Throws Error(kInvalidArgument) unless block_size >= 1.
  explicit BlockQuantHook(int64_t block_size = 256, bool error_feedback = true);
  void start(GradBucket& bucket, comm::Communicator& group) override;
  void finish(GradBucket& bucket, comm::Communicator& group) override;

 private:
  struct InFlight {
    Tensor all;  // (ranks, bytes) u8: scales, then codes
    comm::Work work;
  };
  int64_t block_size_;
  bool error_feedback_;
  std::map<std::string, Tensor> errors_;  // by parameter
  std::map<size_t, InFlight> in_flight_;
};

// Sends the `fraction` of a bucket's elements that are greatest in magnitude, with their places
// (Lin et al., "Deep Gradient Compression", 2018); what is not sent is added to the next gradient.
class TopKHook : public CommHook {
 public:
  // Throws Error(kInvalidArgument) unless 0 < fraction <= 1.
  explicit TopKHook(double fraction = 0.01, bool error_feedback = true);
  void start(GradBucket& bucket, comm::Communicator& group) override;
  void finish(GradBucket& bucket, comm::Communicator& group) override;

 private:
  struct InFlight {
    Tensor places;    // (ranks, k) i64
    Tensor values;    // (ranks, k) f32
    comm::Work work;  // of the values, behind the places
  };
  double fraction_;
  bool error_feedback_;
  std::map<std::string, Tensor> errors_;
  std::map<size_t, InFlight> in_flight_;
};

struct PowerSgdOptions {
  int64_t rank = 1;
  // Backwards that are averaged plainly first, while gradients change fast.
  int64_t start_iteration = 10;
  // A matrix of n rows and m columns is compressed where (n + m) * rank * min_compression < n * m.
  double min_compression = 2;
  uint64_t seed = 0;  // of the first projections; the same on every rank
};

// Sends a product of two thin matrices for each gradient of two and more dimensions (one row for
// each index of the first), by a step of power iteration that starts from the last one's result
// (Vogels et al., "PowerSGD", 2019, algorithm 1), with error feedback. Vectors, and matrices that
// would not shrink, go as they are.
class PowerSgdHook : public CommHook {
 public:
  // Throws Error(kInvalidArgument) unless rank >= 1, start_iteration >= 0, min_compression > 0.
  explicit PowerSgdHook(PowerSgdOptions options = {});
  void start(GradBucket& bucket, comm::Communicator& group) override;
  void finish(GradBucket& bucket, comm::Communicator& group) override;

 private:
  struct Matrix {
    size_t place;  // in the bucket's list of gradients
    Tensor m;      // (n, m), f32: the gradient and the error so far
    Tensor p;      // (n, rank), a view of InFlight::thin
  };
  struct InFlight {
    std::vector<Matrix> matrices;
    Tensor thin;   // all p behind each other
    Tensor plain;  // the uncompressed gradients behind each other, in the bucket's dtype
    comm::Work thin_work, plain_work;
  };
  bool compresses(const Tensor& gradient) const;

  PowerSgdOptions options_;
  int64_t iteration_ = 0;
  std::map<std::string, Tensor> errors_;
  std::map<std::string, Tensor> q_;  // (m, rank) of each matrix
  std::map<size_t, InFlight> in_flight_;
};

}  // namespace lockstep::nn
