// Matrices on their way from a file into tiles: where each will be, and the packing of all of them at once.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "pool.h"
#include "weights.h"

namespace headstart {

class Packer {
 public:
  static constexpr size_t kBeyond = 65536;  // the kernels prefetch a little past what they read

  // The tiles of `t` come after those added before. A type of more bits a weight than `widest` becomes that.
  void add(const Tensor* t, Matrix& m, std::optional<Type> widest);
  size_t bytes() const { return bytes_; }
  // Throws FileError for numbers that cannot be quantised. `mapped`: the tensors lie in files, whose pages need not stay in memory.
  void pack(Model::Weights& weights, Pool& pool, bool mapped, const std::function<void(double)>& progress) const;

 private:
  struct Job {
    const Tensor* tensor;
    Matrix* matrix;
    size_t offset;
  };
  static void pack_slice(const Job& job, int first_tile, int last_tile, uint8_t* out, Pool& pool, bool mapped);
  std::vector<Job> jobs_;
  size_t bytes_ = 0;
};

}  // namespace headstart
