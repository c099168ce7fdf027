// Matrices beside a model: each product is one stage, whose tiles the model's threads take in turn.
#include "products.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>

#include "pack.h"
#include "packer.h"
#include "pass.h"

namespace headstart {

// Memory of the product under way.
struct Products::Working {
  ActsBuffer acts;
};

Products::Products(const std::vector<Tensor>& tensors, std::shared_ptr<const Model> model, Type widest)
    : model_(std::move(model)),
      weights_(std::make_unique<Model::Weights>(nullptr)),
      matrices_(tensors.size()),
      working_(std::make_unique<Working>()) {
  Packer packer;
  for (size_t i = 0; i < tensors.size(); i++) {
    const Tensor& t = tensors[i];
    if (t.shape.size() != 2 || block_size(static_cast<Type>(t.type)) != 1) throw FileError("tensor " + in_quotes(t.name) + " must be a matrix of F32, F16 or BF16");
    if (t.shape[0] == 0 || t.shape[0] % kGroup || t.shape[0] > 1 << 20 || t.shape[1] == 0 || t.shape[1] > 1 << 28)
      throw FileError("tensor " + in_quotes(t.name) + " has " + std::to_string(t.shape[0]) + " inputs, the native engine needs a multiple of 32 (try --engine transformers)");
    packer.add(&t, matrices_[i], widest);
  }
  std::lock_guard lock(model_->runner_->crew->mutex);
  packer.pack(*weights_, model_->runner_->pool, false, nullptr);
}

Products::~Products() = default;

void Products::multiply(size_t index, const float* x, int rows, int outputs, float* out) const {
  const Matrix& w = matrices_[index];
  const Kernels& k = *model_->kernels_;
  const size_t width = static_cast<size_t>(w.k), stride = static_cast<size_t>(outputs);
  Matrix wanted = w;
  wanted.n = outputs;
  std::lock_guard lock(model_->runner_->crew->mutex);
  Pool& pool = model_->runner_->pool;
  for (int first = 0; first < rows; first += kPassRows) {
    const int n = std::min(kPassRows, rows - first);
    const Acts acts = working_->acts.acts(static_cast<size_t>(n), w.k);
    std::memcpy(acts.x, x + static_cast<size_t>(first) * width, static_cast<size_t>(n) * width * sizeof(float));
    for (int r = 0; r < n; r++) k.quantize(acts, r, 0, w.k);
    const int tiles = wanted.num_tiles(), chunk = std::max(1, tiles / (pool.size() * 6));
    std::atomic<int> next{0};
    pool.run([&](int) {
      for (int t = next.fetch_add(chunk); t < tiles; t = next.fetch_add(chunk))
        k.matmul(wanted, acts, n, t, std::min(tiles, t + chunk), out + static_cast<size_t>(first) * stride, stride);
    });
  }
}

size_t Products::weight_bytes() const { return weights_->arena_bytes; }

}  // namespace headstart
