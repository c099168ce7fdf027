// A decoder-only language model over a file of weights: load, caches, and one pass over many sequences.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels.h"
#include "weight_file.h"

namespace headstart {

// What the architecture's metadata says, checked at load.
struct Config {
  std::string architecture;
  int layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ff = 0, vocab = 0, context = 0;
  int rope_dim = 0;
  float eps = 1e-5f, rope_base = 10000.0f, local_rope_base = 10000.0f, rope_scale = 1.0f, attention_scale = 0.0f, embedding_scale = 1.0f;
  float norm_offset = 0.0f;         // added to the weights of norms
  bool rope_interleaved = false, gelu = false;
  bool local_rope = false;          // windowed layers turn by a base of their own
  int window = 0;                   // tokens that a windowed layer sees; 0: no windows
  std::vector<uint8_t> windows;     // by layer: whether it has one
  size_t cache_bytes_per_token() const {  // keys and values, as half floats
    return 2 * sizeof(uint16_t) * static_cast<size_t>(layers) * static_cast<size_t>(kv_heads) * static_cast<size_t>(head_dim);
  }
  bool windowed(int layer) const { return window > 0 && windows[static_cast<size_t>(layer)]; }
};

class Model;
struct HeadShape;
struct Crew;

// What one sequence has been scored on. Not safe for use by two threads at once.
class Cache {
 public:
  explicit Cache(std::shared_ptr<const Model> model);
  int length() const { return length_; }
  void rewind(int length);                        // throws std::invalid_argument past what is held
  void keep(const std::vector<int32_t>& path);    // indices into the tokens of the last score, increasing; throws std::invalid_argument
  std::shared_ptr<Cache> fork() const;
  size_t bytes() const;

 private:
  friend class Model;
  void reserve(int slots);
  std::shared_ptr<const Model> model_;
  int length_ = 0, capacity_ = 0;
  int whole_ = 0, layers_ = 0;         // tokens that all layers hold; the first `layers_` hold those after them too
  int last_start_ = 0;                 // length before the last score, or before those that grew one tree
  std::vector<int32_t> last_parents_;  // of the tokens since, if they are a tree: it must be kept or rewound before another begins
  std::vector<std::vector<uint16_t>> keys_, values_;  // by layer: keys [kv_head][slot/16][head_dim][16], values [kv_head][slot][head_dim]
};

struct Ask {
  Cache* cache = nullptr;
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;  // empty: a chain; else the parent's index within the tree, −1: what the tree hangs from
  int num_logits = 0;            // for the last so many tokens
  float* logits = nullptr;       // [num_logits, vocab], or of the tokens of the tiles asked for
  int64_t* best = nullptr;       // [num_logits] the place of each row's largest logit, the first of equals, of the first NaN where there is one; or nullptr
  float* features = nullptr;     // [tokens, feature layers, hidden], or nullptr; of a draft head [tokens, hidden]: what its layer puts out
  const float* hidden = nullptr; // [tokens, hidden], or of the target's states [tokens, Model::state_width]: what a draft head continues
  bool grows = false;            // the tokens join the tree of the last score, whose indices go on; else they begin one at the cache's end
};

// The part of a model that a pass runs: its first layers, then the final norm and some of the vocabulary.
struct Extent {
  int layers = 0;              // 0: all
  std::vector<int32_t> tiles;  // of the vocabulary's matrix, sixteen tokens each, increasing; empty: all
  bool from_target = false;    // hidden states come from the target, not from the draft head itself
};

class Model : public std::enable_shared_from_this<Model> {
 public:
  // `progress` is told the fraction loaded (0 to 1) now and then. `threads` ≥ 1. `context` 0: the file's own. Matrices of more bits a
  // weight than `widest` (Q8_0 or Q4_0) become that. Throws FileError.
  static std::shared_ptr<Model> load(std::shared_ptr<const WeightFile> file, int threads, const Kernels* kernels, int context, std::optional<Type> widest,
                                     const std::function<void(double)>& progress);
  // A draft head beside `target`: a model of one layer that reads a hidden state with each token, on the target's threads. `tensors` go
  // by the names of published checkpoints and may be let go afterwards; `widest` as above, for the layer. Throws FileError for a head that cannot be run.
  static std::shared_ptr<Model> load_head(const HeadShape& shape, const std::vector<Tensor>& tensors, std::shared_ptr<const Model> target, Type widest);
  // What such a model will hold in memory, told before any of it is asked for. Throws FileError as `load` does.
  struct Needs {
    size_t weights = 0, cache_per_token = 0;
    int context = 0;
  };
  static Needs needs(std::shared_ptr<const WeightFile> file, int context, std::optional<Type> widest);
  ~Model();
  const Config& config() const { return config_; }
  const Kernels& kernels() const { return *kernels_; }
  int threads() const;
  size_t weight_bytes() const;              // held in memory for weights
  size_t bytes_per_pass() const;            // read from memory by a pass that scores one token
  size_t cache_bytes_per_token() const;
  // Score every ask in one pass (in several where they hold more tokens than a pass takes). `feature_layers`: whose inputs are wanted.
  // Tokens scored by fewer than all layers must be rewound before more layers score. All or nothing: whatever is thrown
  // (std::invalid_argument for an impossible ask), every cache is as long as before.
  void score(std::vector<Ask>& asks, const std::vector<int>& feature_layers, const Extent& extent = Extent()) const;
  int num_logits(const Extent& extent) const;  // a row. Throws std::invalid_argument for an impossible extent.
  int state_width() const;                     // of a draft head: numbers of the target's hidden states of one token
  // What a pass starts from, [tokens, hidden], and the rows of the vocabulary head as the file holds them, [tokens, hidden]: for
  // drafters that share them. Throws std::invalid_argument for a token there is not.
  void embeddings(const std::vector<int32_t>& tokens, float* out) const;
  void head_rows(const std::vector<int32_t>& tokens, float* out) const;

  struct Weights;

 private:
  friend class Products;
  struct Runner;
  Model() = default;
  void rows(const Tensor& matrix, const std::vector<int32_t>& tokens, float* out) const;
  Config config_;
  const Kernels* kernels_ = nullptr;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Runner> runner_;
};

}  // namespace headstart
