// The weights of a model as the kernels want them, and how they get there from a file.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels.h"
#include "model.h"
#include "pool.h"
#include "weight_file.h"

namespace headstart {

struct Layer {
  std::vector<float> attention_norm, feed_norm, post_attention_norm, post_feed_norm, q_norm, k_norm, q_bias, k_bias, v_bias;
  Matrix q, k, v, o, gate, up, down;
};

struct Model::Weights {
  explicit Weights(std::shared_ptr<const WeightFile> from) : file(std::move(from)) {}
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  std::shared_ptr<const WeightFile> file;  // stays open: embedding rows are read from it
  const Tensor* embedding = nullptr;
  const Tensor* head_tensor = nullptr;  // the embedding, where the file ties them
  std::vector<Layer> layers;
  std::vector<float> norm;
  Matrix head;
  std::vector<float> rope, local_rope;  // angle per position of each pair of dimensions, [rope_dim/2]
  float rope_magnitude = 1.0f;
  uint8_t* arena = nullptr;             // all tiles, in the order a pass reads them
  size_t arena_bytes = 0;               // with a little room at the end
  size_t tile_bytes = 0, vector_bytes = 0;  // of the tiles; of norms and biases
};

Config read_config(const WeightFile& file, int context);
void load_weights(Model::Weights& weights, const Config& config, std::optional<Type> widest, Pool& pool, const std::function<void(double)>& progress);
size_t measure_weights(Model::Weights& weights, const Config& config, std::optional<Type> widest);  // bytes that `load_weights` will hold

}  // namespace headstart
