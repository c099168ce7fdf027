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

// What a draft head does before its layer: the embedding of a token and a hidden state become the layer's input.
struct Fusion {
  Matrix fc;  // of the target's hidden states, or (`first`) of embedding and hidden state side by side
  std::vector<float> fc_bias, input_norm, hidden_norm;
  bool first = false;                 // generation 1: `fc` of the two is input and residual, and nothing is normed
  bool norm_before_residual = false;  // the residual is the normed hidden state
};

struct Model::Weights {
  explicit Weights(std::shared_ptr<const WeightFile> from) : file(std::move(from)) {}
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  std::shared_ptr<const WeightFile> file;  // stays open: embedding rows are read from it; of a draft head nullptr
  std::shared_ptr<const Model> target;     // of a draft head: stays, with the embedding it may lend
  const Tensor* embedding = nullptr;
  const Tensor* head_tensor = nullptr;  // the embedding, where the file ties them
  std::vector<Layer> layers;
  std::vector<float> norm;
  Matrix head;
  std::unique_ptr<Fusion> fusion;       // of a draft head
  std::vector<uint8_t> own_embedding;   // of a draft head that brings one
  Tensor own_tensor;                    // which describes it
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
