// One pass: embeddings, then for each layer attention and feed-forward, then logits, as stages that all threads share.
//
// A row is one token of one sequence. Every stage treats rows independently (see kernels.h), attention sums run in order of position,
// and threads only divide the work, so a row's result does not depend on what else is in the pass.
#include "model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>

#include "pack.h"
#include "pool.h"
#include "weights.h"

namespace headstart {
namespace {

constexpr int kPassRows = 256;  // more rows in a pass gain no speed and cost memory

// Part of an ask that is in this pass.
struct Piece {
  Ask* ask;
  int first, last;            // tokens of the ask
  const std::vector<int>* depths;
};

struct Row {
  int32_t token;
  int slot, position;
  int chain;                  // slots before this one that are a chain; then `tail`
  int tail, num_tail;         // into Pass::tails
  size_t piece;
};

template <class T>
class Buffer {  // grows, never shrinks, 64-byte aligned
 public:
  T* get(size_t count) {
    if (count > size_) {
      data_.reset(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64)));
      if (!data_) {
        size_ = 0;
        throw std::bad_alloc();
      }
      size_ = count;
    }
    return data_.get();
  }

 private:
  struct Free { void operator()(T* p) const { std::free(p); } };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

struct ActsBuffer {
  Buffer<float> x, scale, sum;
  Buffer<int8_t> q;
  Buffer<int32_t> half_sum;
  Acts acts(size_t rows, int k) {
    const size_t n = rows * static_cast<size_t>(k), groups = n / kGroup;
    return {k, x.get(n), q.get(n), scale.get(groups), sum.get(groups), half_sum.get(2 * groups)};
  }
};

}  // namespace

struct Model::Runner {
  Runner(const Model& model, int threads) : m(model), c(model.config_), k(*model.kernels_), w(*model.weights_), pool(threads), counters(size_t(c.layers) * 8 + 8) {}

  const Model& m;
  const Config& c;
  const Kernels& k;
  const Model::Weights& w;
  Pool pool;
  std::mutex mutex;
  std::vector<std::atomic<int>> counters;

  // The pass under way.
  std::vector<Piece> pieces;
  std::vector<Row> rows;
  std::vector<int32_t> tails;
  const std::vector<int>* feature_layers = nullptr;
  int longest = 0;
  Acts normed, mixed, gated, wanted;
  float *x = nullptr, *delta = nullptr, *qkv = nullptr, *up = nullptr, *angles = nullptr, *local_angles = nullptr, *scores = nullptr;
  ActsBuffer normed_buffer, mixed_buffer, gated_buffer, wanted_buffer;
  Buffer<float> x_buffer, delta_buffer, qkv_buffer, up_buffer, angle_buffer, local_buffer, score_buffer;

  int q_width() const { return c.heads * c.head_dim; }
  int kv_width() const { return c.kv_heads * c.head_dim; }
  int qkv_width() const { return q_width() + 2 * kv_width(); }
  int num_rows() const { return static_cast<int>(rows.size()); }

  void run(std::vector<Piece> some, const std::vector<int>& features);
  void lay_out();
  void prepare();
  void work(int thread);
  void embed(int row);
  void rotate_and_store(const Layer& l, int layer, int row, int kv_head);
  void attend(int layer, int row, int kv_head, int thread);
  void open_layer(const float* post_norm, const float* norm, int row, int feature);
  void save_feature(int row, int feature, const float* values);
};

namespace {

void matmul_stage(const Kernels& k, const Matrix& w, const Acts& a, int rows, int first, int last, float* out, size_t stride) {
  first = std::min(first, w.num_tiles());
  last = std::min(last, w.num_tiles());
  if (first < last) k.matmul(w, a, rows, first, last, out, stride);
}

// cos and sin of position·angle for each pair, [pairs, 2]
void fill_angles(const std::vector<float>& angles, int position, float magnitude, float* out) {
  for (size_t i = 0; i < angles.size(); i++) {
    const double a = static_cast<double>(position) * static_cast<double>(angles[i]);
    out[2 * i] = static_cast<float>(std::cos(a)) * magnitude;
    out[2 * i + 1] = static_cast<float>(std::sin(a)) * magnitude;
  }
}

void rotate(float* head, const float* turn, int rope_dim, bool interleaved) {
  const int pairs = rope_dim / 2;
  for (int i = 0; i < pairs; i++) {
    float& a = head[interleaved ? 2 * i : i];
    float& b = head[interleaved ? 2 * i + 1 : i + pairs];
    const float cos = turn[2 * i], sin = turn[2 * i + 1], was = a;
    a = was * cos - b * sin;
    b = was * sin + b * cos;
  }
}

void add_bias(float* head, const std::vector<float>& bias, int index, int dim) {
  if (bias.empty()) return;
  const float* b = bias.data() + static_cast<size_t>(index) * static_cast<size_t>(dim);
  for (int d = 0; d < dim; d++) head[d] += b[d];
}

}  // namespace

// Where every row of this pass stands and what it may see.
void Model::Runner::lay_out() {
  rows.clear();
  tails.clear();
  longest = 0;
  for (size_t p = 0; p < pieces.size(); p++) {
    const Piece& piece = pieces[p];
    const Ask& ask = *piece.ask;
    const int start = ask.cache->length_;
    for (int i = piece.first; i < piece.last; i++) {
      Row row{ask.tokens[static_cast<size_t>(i)], start + i, start + i, start + i + 1, static_cast<int>(tails.size()), 0, p};
      if (!ask.parents.empty()) {
        row.position = start + (*piece.depths)[static_cast<size_t>(i)];
        row.chain = start;
        for (int node = i; node >= 0; node = ask.parents[static_cast<size_t>(node)]) tails.push_back(start + node);
        row.num_tail = static_cast<int>(tails.size()) - row.tail;
        std::reverse(tails.begin() + row.tail, tails.end());
      }
      longest = std::max(longest, row.chain + row.num_tail);
      rows.push_back(row);
    }
  }
}

void Model::Runner::prepare() {
  const size_t n = rows.size();
  normed = normed_buffer.acts(n, c.hidden);
  mixed = mixed_buffer.acts(n, q_width());
  gated = gated_buffer.acts(n, c.ff);
  x = x_buffer.get(n * static_cast<size_t>(c.hidden));
  delta = delta_buffer.get(n * static_cast<size_t>(c.hidden));
  qkv = qkv_buffer.get(n * static_cast<size_t>(qkv_width()));
  up = up_buffer.get(n * static_cast<size_t>(c.ff));
  angles = angle_buffer.get(n * static_cast<size_t>(c.rope_dim));
  local_angles = local_buffer.get(n * static_cast<size_t>(c.rope_dim));
  const size_t room = static_cast<size_t>(longest) + 2 * kTile;
  scores = score_buffer.get(static_cast<size_t>(pool.size()) * static_cast<size_t>(c.heads / c.kv_heads) * room);
  size_t count = 0;
  for (const Piece& p : pieces) count += static_cast<size_t>(std::max(0, p.last - std::max(p.first, static_cast<int>(p.ask->tokens.size()) - p.ask->num_logits)));
  wanted = wanted_buffer.acts(std::max<size_t>(count, 1), c.hidden);
  for (std::atomic<int>& counter : counters) counter.store(0, std::memory_order_relaxed);
}

void Model::Runner::run(std::vector<Piece> some, const std::vector<int>& features) {
  pieces = std::move(some);
  feature_layers = &features;
  lay_out();
  prepare();
  pool.run([this](int thread) { work(thread); });
}

void Model::Runner::embed(int row) {
  const Row& r = rows[static_cast<size_t>(row)];
  float* out = x + static_cast<size_t>(row) * static_cast<size_t>(c.hidden);
  const Type type = static_cast<Type>(w.embedding->type);
  dequantize_row(type, w.embedding->data + static_cast<size_t>(r.token) * row_bytes(type, c.hidden), c.hidden, out);
  if (c.embedding_scale != 1.0f) for (int i = 0; i < c.hidden; i++) out[i] *= c.embedding_scale;
  fill_angles(w.rope, r.position, w.rope_magnitude, angles + static_cast<size_t>(row) * static_cast<size_t>(c.rope_dim));
  if (c.window) fill_angles(w.local_rope, r.position, 1.0f, local_angles + static_cast<size_t>(row) * static_cast<size_t>(c.rope_dim));
}

void Model::Runner::save_feature(int row, int layer, const float* values) {
  const Row& r = rows[static_cast<size_t>(row)];
  const Ask& ask = *pieces[r.piece].ask;
  if (!ask.features) return;
  const size_t tokens = ask.tokens.size(), hidden = static_cast<size_t>(c.hidden), token = static_cast<size_t>(r.slot - ask.cache->length_);
  for (size_t f = 0; f < feature_layers->size(); f++)
    if ((*feature_layers)[f] == layer) std::memcpy(ask.features + (f * tokens + token) * hidden, values, hidden * sizeof(float));
}

// What the block before added (through `post_norm`, if the architecture has one) joins the row; then the row is normed for the next.
void Model::Runner::open_layer(const float* post_norm, const float* norm, int row, int feature) {
  const size_t at = static_cast<size_t>(row) * static_cast<size_t>(c.hidden);
  float *mine = x + at, *added = delta + at;
  if (post_norm) k.rms_norm(added, post_norm, c.eps, c.hidden, added);
  for (int i = 0; i < c.hidden; i++) mine[i] += added[i];
  if (feature >= 0) save_feature(row, feature, mine);
  k.rms_norm(mine, norm, c.eps, c.hidden, normed.x + at);
  k.quantize(normed, row, 0, c.hidden);
}

// Queries of one head group: bias, norm, rotation, scale. Its key and value: the same, and into the cache.
void Model::Runner::rotate_and_store(const Layer& l, int layer, int row, int kv_head) {
  const Row& r = rows[static_cast<size_t>(row)];
  const int group = c.heads / c.kv_heads, dim = c.head_dim;
  const bool local = c.window_period > 0 && c.windowed(layer);  // gemma3's windowed layers turn by their own base
  const float* turn = (local ? local_angles : angles) + static_cast<size_t>(row) * static_cast<size_t>(c.rope_dim);
  float* mine = qkv + static_cast<size_t>(row) * static_cast<size_t>(qkv_width());
  for (int h = kv_head * group; h < (kv_head + 1) * group; h++) {
    float* q = mine + h * dim;
    add_bias(q, l.q_bias, h, dim);
    if (!l.q_norm.empty()) k.rms_norm(q, l.q_norm.data(), c.eps, dim, q);
    rotate(q, turn, c.rope_dim, c.rope_interleaved);
    for (int d = 0; d < dim; d++) q[d] *= c.attention_scale;
  }
  float *key = mine + q_width() + kv_head * dim, *value = mine + q_width() + kv_width() + kv_head * dim;
  add_bias(key, l.k_bias, kv_head, dim);
  add_bias(value, l.v_bias, kv_head, dim);
  if (!l.k_norm.empty()) k.rms_norm(key, l.k_norm.data(), c.eps, dim, key);
  rotate(key, turn, c.rope_dim, c.rope_interleaved);
  Cache& cache = *pieces[r.piece].ask->cache;
  const size_t per_head = static_cast<size_t>(cache.capacity_) * static_cast<size_t>(dim), slot = static_cast<size_t>(r.slot);
  uint16_t* keys = cache.keys_[static_cast<size_t>(layer)].data() + static_cast<size_t>(kv_head) * per_head + slot / kTile * kTile * static_cast<size_t>(dim) + slot % kTile;
  uint16_t halves[1024];
  k.to_half(key, halves, dim);
  for (int d = 0; d < dim; d++) keys[static_cast<size_t>(d) * kTile] = halves[d];
  k.to_half(value, cache.values_[static_cast<size_t>(layer)].data() + static_cast<size_t>(kv_head) * per_head + slot * static_cast<size_t>(dim), dim);
}

void Model::Runner::attend(int layer, int row, int kv_head, int thread) {
  const Row& r = rows[static_cast<size_t>(row)];
  const Cache& cache = *pieces[r.piece].ask->cache;
  const int group = c.heads / c.kv_heads, dim = c.head_dim, column = kv_head * group * dim;
  const size_t per_head = static_cast<size_t>(cache.capacity_) * static_cast<size_t>(dim), room = static_cast<size_t>(longest) + 2 * kTile;
  Attention a;
  a.query = qkv + static_cast<size_t>(row) * static_cast<size_t>(qkv_width()) + column;
  a.heads = group;
  a.head_dim = dim;
  a.keys = cache.keys_[static_cast<size_t>(layer)].data() + static_cast<size_t>(kv_head) * per_head;
  a.values = cache.values_[static_cast<size_t>(layer)].data() + static_cast<size_t>(kv_head) * per_head;
  a.chain = r.chain;
  a.tail = tails.data() + r.tail;
  a.num_tail = r.num_tail;
  if (c.windowed(layer)) {
    a.first = std::max(0, r.position - c.window + 1);
    if (a.first > a.chain) {  // the window begins within the tree
      a.tail += a.first - a.chain;
      a.num_tail -= a.first - a.chain;
      a.first = a.chain;
    }
  }
  a.scores = scores + static_cast<size_t>(thread) * static_cast<size_t>(group) * room;
  a.score_stride = room;
  a.out = mixed.x + static_cast<size_t>(row) * static_cast<size_t>(q_width()) + column;
  k.attend(a);
  k.quantize(mixed, row, column, column + group * dim);
}

// What each thread does in a pass: the same stages in the same order, taking pieces of each as they come.
void Model::Runner::work(int thread) {
  const int n = num_rows(), hidden = c.hidden;
  size_t stage = 0;
  // The first piece of a stage is a thread's by its number, so that it can be fetched from memory while waiting for the others.
  const uint8_t *line = nullptr, *last_line = nullptr;
  const auto share = [&](int tasks, int chunk, auto&& task) {
    std::atomic<int>& next = counters[stage++];
    for (int first = thread * chunk; first < tasks; first = (pool.size() + next.fetch_add(1)) * chunk) task(first, std::min(first + chunk, tasks));
    pool.barrier([&] {
      if (line >= last_line) return false;
      for (int i = 0; i < 4; i++, line += 64) k.prefetch(line);
      return true;
    });
    line = last_line = nullptr;
  };
  const auto coming = [&](const Matrix& matrix, int chunk) {
    line = matrix.tiles + static_cast<size_t>(std::min(thread * chunk, matrix.num_tiles())) * matrix.tile_bytes;
    last_line = std::min(line + std::min<size_t>(static_cast<size_t>(chunk) * matrix.tile_bytes, 1 << 18), matrix.tiles + static_cast<size_t>(matrix.num_tiles()) * matrix.tile_bytes);
  };
  const auto tile_chunk = [&](int tiles) { return std::max(1, tiles / (pool.size() * 6)); };
  const auto each_row = [&](auto&& task) {
    share(n, std::max(1, n / (pool.size() * 4)), [&](int first, int last) { for (int r = first; r < last; r++) task(r); });
  };
  const auto each_head = [&](auto&& task) {
    const int tasks = n * c.kv_heads;
    share(tasks, std::max(1, tasks / (pool.size() * 8)), [&](int first, int last) { for (int t = first; t < last; t++) task(t / c.kv_heads, t % c.kv_heads); });
  };
  const auto project = [&](const Matrix& matrix, const Acts& a) {
    share(matrix.num_tiles(), tile_chunk(matrix.num_tiles()), [&](int first, int last) { matmul_stage(k, matrix, a, n, first, last, delta, static_cast<size_t>(hidden)); });
  };
  const float* post_norm = nullptr;
  for (int layer = 0; layer < c.layers; layer++) {
    const Layer& l = w.layers[static_cast<size_t>(layer)];
    const int q_tiles = l.q.num_tiles(), k_tiles = l.k.num_tiles(), tiles = q_tiles + 2 * k_tiles;
    coming(l.q, tile_chunk(tiles));
    each_row([&](int r) {
      if (layer == 0) {
        embed(r);
        std::fill_n(delta + static_cast<size_t>(r) * static_cast<size_t>(hidden), hidden, 0.0f);
      }
      open_layer(layer ? post_norm : nullptr, l.attention_norm.data(), r, layer);
    });
    share(tiles, tile_chunk(tiles), [&](int first, int last) {
      const size_t stride = static_cast<size_t>(qkv_width());
      matmul_stage(k, l.q, normed, n, first, last, qkv, stride);
      matmul_stage(k, l.k, normed, n, std::max(0, first - q_tiles), std::max(0, last - q_tiles), qkv + q_width(), stride);
      matmul_stage(k, l.v, normed, n, std::max(0, first - q_tiles - k_tiles), std::max(0, last - q_tiles - k_tiles), qkv + q_width() + kv_width(), stride);
    });
    each_head([&](int r, int h) { rotate_and_store(l, layer, r, h); });
    coming(l.o, tile_chunk(l.o.num_tiles()));
    each_head([&](int r, int h) { attend(layer, r, h, thread); });
    project(l.o, mixed);
    const float* attention_post = l.post_attention_norm.empty() ? nullptr : l.post_attention_norm.data();
    const int pairs = c.ff / kGroup;
    coming(l.gate, 2 * tile_chunk(pairs));
    each_row([&](int r) { open_layer(attention_post, l.feed_norm.data(), r, -1); });
    // Two tiles at a time: 32 outputs of gate and up are 32 inputs of the next product, one group to quantise.
    share(pairs, tile_chunk(pairs), [&](int first, int last) {
      const size_t stride = static_cast<size_t>(c.ff);
      matmul_stage(k, l.gate, normed, n, 2 * first, 2 * last, gated.x, stride);
      matmul_stage(k, l.up, normed, n, 2 * first, 2 * last, up, stride);
      for (int r = 0; r < n; r++) {
        const size_t at = static_cast<size_t>(r) * stride + static_cast<size_t>(first) * kGroup;
        (c.gelu ? k.gelu_mul : k.silu_mul)(gated.x + at, up + at, (last - first) * kGroup);
        k.quantize(gated, r, first * kGroup, last * kGroup);
      }
    });
    project(l.down, gated);
    post_norm = l.post_feed_norm.empty() ? nullptr : l.post_feed_norm.data();
  }
  each_row([&](int r) {
    open_layer(post_norm, w.norm.data(), r, -1);
    save_feature(r, c.layers, normed.x + static_cast<size_t>(r) * static_cast<size_t>(hidden));
  });
  // Rows whose logits are wanted, side by side, so that the head is read once for all of them.
  struct Group { int first, count; float* out; };
  std::vector<Group> groups;
  int count = 0;
  for (int r = 0; r < n; r++) {
    const Row& row = rows[static_cast<size_t>(r)];
    const Ask& ask = *pieces[row.piece].ask;
    const int index = row.slot - ask.cache->length_ - (static_cast<int>(ask.tokens.size()) - ask.num_logits);
    if (index < 0) continue;
    float* out = ask.logits + static_cast<size_t>(index) * static_cast<size_t>(c.vocab);
    if (thread == 0) {
      std::memcpy(wanted.x + static_cast<size_t>(count) * static_cast<size_t>(hidden), normed.x + static_cast<size_t>(r) * static_cast<size_t>(hidden), sizeof(float) * static_cast<size_t>(hidden));
      k.quantize(wanted, count, 0, hidden);
    }
    if (!groups.empty() && groups.back().out + static_cast<size_t>(groups.back().count) * static_cast<size_t>(c.vocab) == out) groups.back().count++;
    else groups.push_back({count, 1, out});
    count++;
  }
  pool.barrier();
  if (!count) return;
  const size_t groups_of_32 = static_cast<size_t>(hidden) / kGroup;
  share(w.head.num_tiles(), std::max(1, std::min(64, tile_chunk(w.head.num_tiles()))), [&](int first, int last) {
    for (int t = first; t < last; t++)
      for (const Group& g : groups) {
        const size_t f = static_cast<size_t>(g.first);
        const Acts part{hidden, wanted.x + f * static_cast<size_t>(hidden), wanted.q + f * static_cast<size_t>(hidden), wanted.scale + f * groups_of_32,
                        wanted.sum + f * groups_of_32, wanted.half_sum + 2 * f * groups_of_32};
        k.matmul(w.head, part, g.count, t, t + 1, g.out, static_cast<size_t>(c.vocab));
      }
  });
}

// ---- Model -------------------------------------------------------------------------------------------------------------------

std::shared_ptr<Model> Model::load(const std::string& path, int threads, const Kernels* kernels, int context, const std::function<void(double)>& progress) {
  std::shared_ptr<Model> model(new Model());
  model->weights_ = std::make_unique<Weights>(path);
  model->config_ = read_config(model->weights_->file, context);
  model->kernels_ = kernels;
  model->runner_ = std::make_unique<Runner>(*model, std::max(1, threads));
  load_weights(*model->weights_, model->config_, model->runner_->pool, progress);
  return model;
}

Model::~Model() = default;

int Model::threads() const { return runner_->pool.size(); }

size_t Model::weight_bytes() const { return weights_->arena_bytes; }

size_t Model::bytes_per_pass() const { return weights_->arena_bytes; }

size_t Model::cache_bytes_per_token() const {
  return 2 * sizeof(uint16_t) * static_cast<size_t>(config_.layers) * static_cast<size_t>(config_.kv_heads) * static_cast<size_t>(config_.head_dim);
}

namespace {

// Raises for an impossible ask; fills the depth of each node. A chain written as a tree becomes a chain.
void check(Ask& ask, const Config& c, std::vector<int>& depths) {
  const size_t n = ask.tokens.size();
  if (!ask.cache || n == 0) throw std::invalid_argument("`tokens` must hold at least one token");
  if (!ask.parents.empty() && ask.parents.size() != n) throw std::invalid_argument("`parents` must name one parent a token");
  if (ask.num_logits < 0 || static_cast<size_t>(ask.num_logits) > n) throw std::invalid_argument("`num_logits` must be between 0 and the number of tokens");
  if (n > static_cast<size_t>(c.context) || ask.cache->length() + static_cast<int>(n) > c.context)
    throw std::invalid_argument("the context holds " + std::to_string(c.context) + " tokens; " + std::to_string(ask.cache->length()) + " are in the cache and " + std::to_string(n) + " were asked for");
  for (const int32_t token : ask.tokens)
    if (token < 0 || token >= c.vocab) throw std::invalid_argument("token " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(c.vocab));
  depths.assign(ask.parents.size(), 0);
  bool chain = true;
  for (size_t i = 0; i < ask.parents.size(); i++) {
    const int32_t parent = ask.parents[i];
    if (parent < -1 || parent >= static_cast<int32_t>(i)) throw std::invalid_argument("`parents` must name an earlier token or −1");
    depths[i] = parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1;
    chain = chain && parent == static_cast<int32_t>(i) - 1;
  }
  if (chain) ask.parents.clear();
}

}  // namespace

void Model::score(std::vector<Ask>& asks, const std::vector<int>& feature_layers) const {
  std::lock_guard lock(runner_->mutex);
  std::vector<std::vector<int>> depths(asks.size());
  for (size_t i = 0; i < asks.size(); i++) {
    check(asks[i], config_, depths[i]);
    if (asks[i].cache->model_.get() != this) throw std::invalid_argument("`cache` must come from open() of the model that scores it");
    if (!asks[i].cache->last_parents_.empty()) throw std::invalid_argument("a scored tree must be kept or rewound before the next score");
    for (size_t j = 0; j < i; j++) if (asks[j].cache == asks[i].cache) throw std::invalid_argument("`asks` must not name one cache twice; fork it");
  }
  for (Ask& ask : asks) ask.cache->reserve(ask.cache->length_ + static_cast<int>(ask.tokens.size()));
  std::vector<Piece> pieces;
  int room = kPassRows;
  for (size_t i = 0; i < asks.size(); i++) {
    const int n = static_cast<int>(asks[i].tokens.size());
    for (int first = 0; first < n;) {
      const int last = std::min(n, first + room);
      pieces.push_back({&asks[i], first, last, &depths[i]});
      room -= last - first;
      first = last;
      if (room == 0) {
        runner_->run(std::move(pieces), feature_layers);
        pieces.clear();
        room = kPassRows;
      }
    }
  }
  if (!pieces.empty()) runner_->run(std::move(pieces), feature_layers);
  for (Ask& ask : asks) {
    ask.cache->last_start_ = ask.cache->length_;
    ask.cache->length_ += static_cast<int>(ask.tokens.size());
    ask.cache->last_parents_ = ask.parents;
  }
}

}  // namespace headstart
