// Models and their asks: loading, what a pass may be asked, and how asks are cut into passes.
#include "model.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>

#include "pack.h"
#include "pass.h"

namespace headstart {

std::shared_ptr<Model> Model::load(std::shared_ptr<const WeightFile> file, int threads, const Kernels* kernels, int context, std::optional<Type> widest,
                                   const std::function<void(double)>& progress) {
  std::shared_ptr<Model> model(new Model());
  model->weights_ = std::make_unique<Weights>(std::move(file));
  model->config_ = read_config(*model->weights_->file, context);
  model->kernels_ = kernels;
  model->runner_ = std::make_unique<Runner>(*model, std::make_shared<Crew>(std::max(1, threads)));
  load_weights(*model->weights_, model->config_, widest, model->runner_->pool, progress);
  return model;
}

Model::~Model() = default;

int Model::threads() const { return runner_->pool.size(); }

size_t Model::weight_bytes() const { return weights_->arena_bytes + weights_->vector_bytes; }

size_t Model::bytes_per_pass() const { return weights_->tile_bytes + weights_->vector_bytes; }

size_t Model::cache_bytes_per_token() const { return config_.cache_bytes_per_token(); }

Model::Needs Model::needs(std::shared_ptr<const WeightFile> file, int context, std::optional<Type> widest) {
  Weights weights(std::move(file));
  const Config config = read_config(*weights.file, context);
  return {measure_weights(weights, config, widest), config.cache_bytes_per_token(), config.context};
}

void Model::rows(const Tensor& matrix, const std::vector<int32_t>& tokens, float* out) const {
  const Type type = static_cast<Type>(matrix.type);
  const size_t hidden = static_cast<size_t>(config_.hidden), width = row_bytes(type, config_.hidden);
  for (size_t i = 0; i < tokens.size(); i++) {
    if (tokens[i] < 0 || tokens[i] >= config_.vocab) throw std::invalid_argument("token " + std::to_string(tokens[i]) + " is outside the vocabulary of " + std::to_string(config_.vocab));
    dequantize_row(type, matrix.data + static_cast<size_t>(tokens[i]) * width, config_.hidden, out + i * hidden);
  }
}

void Model::embeddings(const std::vector<int32_t>& tokens, float* out) const {
  rows(*weights_->embedding, tokens, out);
  if (config_.embedding_scale != 1.0f)
    for (size_t i = 0; i < tokens.size() * static_cast<size_t>(config_.hidden); i++) out[i] *= config_.embedding_scale;
}

void Model::head_rows(const std::vector<int32_t>& tokens, float* out) const { rows(*weights_->head_tensor, tokens, out); }

namespace {

// Raises for an impossible ask.
void check(const Ask& ask, const Config& c, bool head) {
  const size_t n = ask.tokens.size();
  if (!ask.cache || n == 0) throw std::invalid_argument("`tokens` must hold at least one token");
  if ((!ask.parents.empty() || ask.grows) && ask.parents.size() != n) throw std::invalid_argument("`parents` must name one parent a token");
  if (head != (ask.hidden != nullptr)) throw std::invalid_argument(head ? "a draft head needs `hidden`" : "`hidden` is for draft heads");
  if (ask.num_logits < 0 || static_cast<size_t>(ask.num_logits) > n) throw std::invalid_argument("`num_logits` must be between 0 and the number of tokens");
  if (n > static_cast<size_t>(c.context) || ask.cache->length() + static_cast<int>(n) > c.context)
    throw std::invalid_argument("the context holds " + std::to_string(c.context) + " tokens; " + std::to_string(ask.cache->length()) + " are in the cache and " + std::to_string(n) + " were asked for");
  for (const int32_t token : ask.tokens)
    if (token < 0 || token >= c.vocab) throw std::invalid_argument("token " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(c.vocab));
}

}  // namespace

// A chain written as a tree is a chain.
Tree Model::Runner::tree_of(const Ask& ask) {
  const Cache& cache = *ask.cache;
  Tree tree{ask.grows ? cache.last_start_ : cache.length_, {}, {}};
  if (ask.parents.empty()) return tree;
  if (ask.grows) {
    tree.parents = cache.last_parents_;
    for (int i = static_cast<int>(tree.parents.size()); i < cache.length_ - tree.root; i++) tree.parents.push_back(i - 1);
  }
  tree.parents.insert(tree.parents.end(), ask.parents.begin(), ask.parents.end());
  bool chain = true;
  for (size_t i = 0; i < tree.parents.size(); i++) {
    const int32_t parent = tree.parents[i];
    if (parent < -1 || parent >= static_cast<int32_t>(i)) throw std::invalid_argument("`parents` must name an earlier token or −1");
    tree.depths.push_back(parent < 0 ? 0 : tree.depths[static_cast<size_t>(parent)] + 1);
    chain = chain && parent == static_cast<int32_t>(i) - 1;
  }
  if (chain) tree.parents.clear();
  return tree;
}

int Model::state_width() const { return weights_->fusion->first ? config_.hidden : weights_->fusion->fc.k; }

int Model::num_logits(const Extent& extent) const {
  const int tiles = weights_->head.num_tiles();
  if (extent.layers < 0 || extent.layers > config_.layers) throw std::invalid_argument("`layers` must be from 1 to " + std::to_string(config_.layers) + ", or 0 for all, got " + std::to_string(extent.layers));
  for (size_t i = 0; i < extent.tiles.size(); i++)
    if (extent.tiles[i] < 0 || extent.tiles[i] >= tiles || (i && extent.tiles[i] <= extent.tiles[i - 1])) throw std::invalid_argument("`tiles` must be increasing, from 0 to " + std::to_string(tiles - 1));
  if (extent.tiles.empty()) return weights_->head.n;
  return std::min(kTile, weights_->head.n - extent.tiles.back() * kTile) + static_cast<int>(extent.tiles.size() - 1) * kTile;
}

void Model::score(std::vector<Ask>& asks, const std::vector<int>& feature_layers, const Extent& extent) const {
  num_logits(extent);
  const int layers = extent.layers ? extent.layers : config_.layers;
  if (layers < config_.layers && !feature_layers.empty()) throw std::invalid_argument("`feature_layers` need a pass of all layers");
  std::lock_guard lock(runner_->crew->mutex);
  std::vector<Tree> trees;
  for (size_t i = 0; i < asks.size(); i++) {
    check(asks[i], config_, weights_->fusion != nullptr);
    if (asks[i].cache->model_.get() != this) throw std::invalid_argument("`cache` must come from open() of the model that scores it");
    if (asks[i].cache->whole_ < asks[i].cache->length_ && asks[i].cache->layers_ < layers)
      throw std::invalid_argument("tokens scored by the first " + std::to_string(asks[i].cache->layers_) + " layers must be rewound before " + std::to_string(layers) + " score");
    if (!asks[i].cache->last_parents_.empty() && !asks[i].grows) throw std::invalid_argument("a scored tree must be kept or rewound before the next score");
    for (size_t j = 0; j < i; j++) if (asks[j].cache == asks[i].cache) throw std::invalid_argument("`asks` must not name one cache twice; fork it");
    trees.push_back(Runner::tree_of(asks[i]));
  }
  for (Ask& ask : asks) ask.cache->reserve(ask.cache->length_ + static_cast<int>(ask.tokens.size()));
  std::vector<Piece> pieces;
  int room = kPassRows;
  for (size_t i = 0; i < asks.size(); i++) {
    const int n = static_cast<int>(asks[i].tokens.size());
    for (int first = 0; first < n;) {
      const int last = std::min(n, first + room);
      pieces.push_back({&asks[i], first, last, &trees[i]});
      room -= last - first;
      first = last;
      if (room == 0) {
        runner_->run(std::move(pieces), feature_layers, extent);
        pieces.clear();
        room = kPassRows;
      }
    }
  }
  if (!pieces.empty()) runner_->run(std::move(pieces), feature_layers, extent);
  for (size_t i = 0; i < asks.size(); i++) {
    Cache& cache = *asks[i].cache;
    cache.last_start_ = trees[i].root;
    cache.length_ += static_cast<int>(asks[i].tokens.size());
    cache.layers_ = layers;
    if (layers == config_.layers) cache.whole_ = cache.length_;
    cache.last_parents_ = std::move(trees[i].parents);
  }
}

}  // namespace headstart
