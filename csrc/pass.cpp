// One pass: embeddings, then for each layer attention and feed-forward, then logits, as stages that all threads share.
//
// A row is one token of one sequence. Every stage treats rows independently (see kernels.h), attention sums run in order of position,
// and threads only divide the work, so a row's result does not depend on what else is in the pass.
#include "pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "pack.h"

namespace headstart {
namespace {

constexpr int kBlockQueries = 12;     // queries that share the loads of attention
constexpr int kAloneNumbers = 4096;   // rows · hidden up to which threads do not share the work between products
constexpr size_t kComing = 1 << 17;   // bytes fetched ahead of a stage while waiting for it

void matmul_stage(const Kernels& k, const Matrix& w, const Acts& a, int rows, int first, int last, float* out, size_t stride) {
  first = std::min(std::max(first, 0), w.num_tiles());
  last = std::min(std::max(last, 0), w.num_tiles());
  if (first < last) k.matmul(w, a, rows, first, last, out, stride);
}

}  // namespace

void fill_angles(const std::vector<float>& angles, int position, float magnitude, bool interleaved, float* out) {
  const size_t pairs = angles.size();
  float *cos = out, *sin = out + 2 * pairs;
  for (size_t i = 0; i < pairs; i++) {
    const double angle = static_cast<double>(position) * static_cast<double>(angles[i]);
    const size_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + pairs;
    cos[a] = cos[b] = static_cast<float>(std::cos(angle)) * magnitude;
    sin[b] = static_cast<float>(std::sin(angle)) * magnitude;
    sin[a] = -sin[b];
  }
}

Model::Runner::Runner(const Model& model, std::shared_ptr<Crew> shared)
    : m(model), c(model.config_), k(*model.kernels_), w(*model.weights_), crew(std::move(shared)), pool(crew->pool), ranges(3 * static_cast<size_t>(pool.size())),
      residual_buffers(static_cast<size_t>(pool.size())) {}

void Model::Runner::run(std::vector<Piece> some, const std::vector<int>& features, const Extent& part) {
  pieces = std::move(some);
  feature_layers = &features;
  extent = &part;
  width = static_cast<size_t>(m.num_logits(part));
  lay_out();
  prepare();
  pool.run([this](int thread) { work(thread); });
}

// Where every row of this pass stands, what it may see and whether its logits are wanted.
void Model::Runner::lay_out() {
  rows.clear();
  tails.clear();
  blocks.clear();
  wanted.clear();
  longest = 0;
  const int together = std::max(1, kBlockQueries / (c.heads / c.kv_heads));
  for (size_t p = 0; p < pieces.size(); p++) {
    const Piece& piece = pieces[p];
    const Ask& ask = *piece.ask;
    const int start = ask.cache->length_, silent = static_cast<int>(ask.tokens.size()) - ask.num_logits;
    for (int i = piece.first; i < piece.last; i++) {
      PassRow row{ask.tokens[static_cast<size_t>(i)], start + i, start + i, start + i + 1, static_cast<int>(tails.size()), 0, p};
      if (const Tree& tree = *piece.tree; !tree.parents.empty()) {
        const int own = row.slot - tree.root;
        row.position = tree.root + tree.depths[static_cast<size_t>(own)];
        row.chain = tree.root;
        for (int node = own; node >= 0; node = tree.parents[static_cast<size_t>(node)]) tails.push_back(tree.root + node);
        row.num_tail = static_cast<int>(tails.size()) - row.tail;
        std::reverse(tails.begin() + row.tail, tails.end());
      }
      longest = std::max(longest, row.chain + row.num_tail);
      if ((i - piece.first) % together == 0) blocks.push_back({num_rows(), 0});
      blocks.back().rows++;
      if (i >= silent) wanted.push_back({num_rows(), ask.logits + static_cast<size_t>(i - silent) * width, ask.best ? ask.best + (i - silent) : nullptr});
      rows.push_back(row);
    }
  }
}

void Model::Runner::prepare() {
  const size_t n = rows.size(), hidden = static_cast<size_t>(c.hidden), threads = static_cast<size_t>(pool.size());
  alone = threads > 1 && n * hidden <= kAloneNumbers;
  residuals.clear();
  for (size_t t = 0; t < threads; t++) {
    ResidualBuffer& own = residual_buffers[alone ? t : 0];
    residuals.push_back({own.x.get(n * hidden), own.normed.acts(n, c.hidden), own.wanted.acts(std::max<size_t>(wanted.size(), 1), c.hidden), w.fusion ? own.joined.acts(n, 2 * c.hidden) : Acts()});
  }
  mixed = mixed_buffer.acts(n, q_width());
  gated = gated_buffer.acts(n, c.ff);
  delta = delta_buffer.get(n * hidden);
  qkv = qkv_buffer.get(n * static_cast<size_t>(qkv_width()));
  up = up_buffer.get(n * static_cast<size_t>(c.ff));
  angles = angle_buffer.get(2 * n * static_cast<size_t>(c.rope_dim));
  local_angles = local_buffer.get(2 * n * static_cast<size_t>(c.rope_dim));
  const size_t group = static_cast<size_t>(c.heads / c.kv_heads);
  scratch_per_thread = std::max<size_t>(kBlockQueries, group) * static_cast<size_t>(longest + 2 * kTile + c.head_dim);
  scratch = scratch_buffer.get(threads * scratch_per_thread);
  leads.assign(threads * wanted.size(), Lead());
  for (Range& range : ranges) range.taken.store(0, std::memory_order_relaxed);
  if (w.fusion) gather_states();
}

void Model::Runner::read_embedding(int32_t token, float* out) const {
  const Type type = static_cast<Type>(w.embedding->type);
  dequantize_row(type, w.embedding->data + static_cast<size_t>(token) * row_bytes(type, c.hidden), c.hidden, out);
  if (c.embedding_scale != 1.0f) for (int i = 0; i < c.hidden; i++) out[i] *= c.embedding_scale;
}

void Model::Runner::embed(int row) {
  const PassRow& r = rows[static_cast<size_t>(row)];
  read_embedding(r.token, residuals[0].x + static_cast<size_t>(row) * static_cast<size_t>(c.hidden));
  const size_t at = 2 * static_cast<size_t>(row) * static_cast<size_t>(c.rope_dim);
  fill_angles(w.rope, r.position, w.rope_magnitude, c.rope_interleaved, angles + at);
  if (c.window) fill_angles(w.local_rope, r.position, 1.0f, c.rope_interleaved, local_angles + at);
}

void Model::Runner::save_feature(int row, int layer, const float* values) {
  const PassRow& r = rows[static_cast<size_t>(row)];
  const Ask& ask = *pieces[r.piece].ask;
  if (!ask.features) return;
  const size_t count = feature_layers->size(), hidden = static_cast<size_t>(c.hidden), token = static_cast<size_t>(r.slot - ask.cache->length_);
  for (size_t f = 0; f < count; f++)
    if ((*feature_layers)[f] == layer) std::memcpy(ask.features + (token * count + f) * hidden, values, hidden * sizeof(float));
}

// What the block before added (through `post_norm`, if the architecture has one) joins the row; then the row is normed for the next.
void Model::Runner::open_row(const Residual& mine, bool added, const float* post_norm, const float* norm, int row, int feature) {
  const size_t at = static_cast<size_t>(row) * static_cast<size_t>(c.hidden);
  float *x = mine.x + at, *normed = mine.normed.x + at;
  if (added && post_norm) {
    k.rms_norm(delta + at, post_norm, c.eps, c.hidden, normed);
    k.add(x, normed, c.hidden);
  } else if (added) {
    k.add(x, delta + at, c.hidden);
  }
  if (feature >= 0) save_feature(row, feature, x);
  if (norm) k.rms_norm(x, norm, c.eps, c.hidden, normed);
  else std::memcpy(normed, x, static_cast<size_t>(c.hidden) * sizeof(float));
  k.quantize(mine.normed, row, 0, c.hidden);
}

// Heads first … last − 1 of all rows, counted through queries, keys and values: the product, and what a head needs before attention.
void Model::Runner::project_heads(const Layer& l, int layer, const Acts& normed, int first, int last) {
  const int n = num_rows(), tiles = c.head_dim / kTile, keys = c.heads, values = c.heads + c.kv_heads;
  const size_t stride = static_cast<size_t>(qkv_width());
  matmul_stage(k, l.q, normed, n, first * tiles, last * tiles, qkv, stride);
  matmul_stage(k, l.k, normed, n, (first - keys) * tiles, (last - keys) * tiles, qkv + q_width(), stride);
  matmul_stage(k, l.v, normed, n, (first - values) * tiles, (last - values) * tiles, qkv + q_width() + kv_width(), stride);
  for (int head = first; head < last; head++) for (int row = 0; row < n; row++) finish_head(l, layer, row, head);
}

// A query: bias, norm, rotation. A key: the same, and into the cache. A value: bias, and into the cache.
void Model::Runner::finish_head(const Layer& l, int layer, int row, int head) {
  const PassRow& r = rows[static_cast<size_t>(row)];
  const int dim = c.head_dim;
  const bool is_query = head < c.heads, is_key = !is_query && head < c.heads + c.kv_heads;
  const int index = is_query ? head : is_key ? head - c.heads : head - c.heads - c.kv_heads;
  float* mine = qkv + static_cast<size_t>(row) * static_cast<size_t>(qkv_width()) + head * dim;
  const std::vector<float>& bias = is_query ? l.q_bias : is_key ? l.k_bias : l.v_bias;
  if (!bias.empty()) k.add(mine, bias.data() + static_cast<size_t>(index) * static_cast<size_t>(dim), dim);
  if (is_query || is_key) {
    const std::vector<float>& norm = is_query ? l.q_norm : l.k_norm;
    if (!norm.empty()) k.rms_norm(mine, norm.data(), c.eps, dim, mine);
    const bool local = c.local_rope && c.windowed(layer);
    k.rotate(mine, (local ? local_angles : angles) + 2 * static_cast<size_t>(row) * static_cast<size_t>(c.rope_dim), c.rope_dim, c.rope_interleaved);
    if (is_query) return;
  }
  Cache& cache = *pieces[r.piece].ask->cache;
  const size_t width = static_cast<size_t>(dim), slot = static_cast<size_t>(r.slot), block = static_cast<size_t>(index) * static_cast<size_t>(cache.capacity_) * width;
  if (!is_key) return k.to_half(mine, cache.values_[static_cast<size_t>(layer)].data() + block + slot * width, dim);
  uint16_t* keys = cache.keys_[static_cast<size_t>(layer)].data() + block + slot / kTile * kTile * width + slot % kTile;
  uint16_t halves[1024];
  k.to_half(mine, halves, dim);
  for (int d = 0; d < dim; d++) keys[static_cast<size_t>(d) * kTile] = halves[d];
}

// Query heads first_head … last_head − 1 of one key head, for a block of rows.
void Model::Runner::attend(int layer, const Block& block, int kv_head, int first_head, int last_head, int thread) {
  const Cache& cache = *pieces[rows[static_cast<size_t>(block.first)].piece].ask->cache;
  const int dim = c.head_dim, column = (kv_head * (c.heads / c.kv_heads) + first_head) * dim, width = (last_head - first_head) * dim;
  const size_t per_head = static_cast<size_t>(cache.capacity_) * static_cast<size_t>(dim);
  Seen seen[kBlockQueries];
  int firsts[kBlockQueries];
  for (int i = 0; i < block.rows; i++) {
    const PassRow& r = rows[static_cast<size_t>(block.first + i)];
    seen[i] = {r.chain, tails.data() + r.tail, r.num_tail};
    firsts[i] = c.windowed(layer) ? std::max(0, r.position - c.window + 1) : 0;
    if (const int beyond = firsts[i] - r.chain; beyond > 0) {  // the window begins within the tree
      seen[i].tail += beyond;
      seen[i].num_tail -= beyond;
      firsts[i] = r.chain;
    }
  }
  for (int from = 0, to; from < block.rows; from = to) {  // rows whose windows begin at different slots do not share
    for (to = from + 1; to < block.rows && firsts[to] == firsts[from];) to++;
    const size_t row = static_cast<size_t>(block.first + from);
    Attention a;
    a.query = qkv + row * static_cast<size_t>(qkv_width()) + column;
    a.query_stride = static_cast<size_t>(qkv_width());
    a.scale = c.attention_scale;
    a.rows = to - from;
    a.heads = last_head - first_head;
    a.head_dim = dim;
    a.keys = cache.keys_[static_cast<size_t>(layer)].data() + static_cast<size_t>(kv_head) * per_head;
    a.values = cache.values_[static_cast<size_t>(layer)].data() + static_cast<size_t>(kv_head) * per_head;
    a.first = firsts[from];
    a.seen = seen + from;
    a.scratch = scratch + static_cast<size_t>(thread) * scratch_per_thread;
    a.out = mixed.x + row * static_cast<size_t>(q_width()) + column;
    a.out_stride = static_cast<size_t>(q_width());
    k.attend(a);
  }
  for (int i = 0; i < block.rows; i++) k.quantize(mixed, block.first + i, column, column + width);
}

// Query heads of one key head that attend as one task: all, unless that leaves threads without work.
int Model::Runner::heads_per_part() const {
  const int group = c.heads / c.kv_heads, tasks = static_cast<int>(blocks.size()) * c.kv_heads, threads = pool.size();
  if (c.head_dim % kGroup) return group;  // parts are quantised in whole groups
  for (int part = group; part > 1; part--) {
    const int parts = tasks * ((group + part - 1) / part), most = (parts + threads - 1) / threads;
    if (most * threads * 5 <= parts * 6) return part;
  }
  return 1;
}

// Tiles first … last − 1 of those wanted of the vocabulary's matrix, for the wanted rows; neighbours in memory are done as one product.
void Model::Runner::score_head(const Acts& acts, int first, int last) {
  const int count = static_cast<int>(wanted.size());
  for (int t = first; t < last; t++) {
    const int tile = extent->tiles.empty() ? t : extent->tiles[static_cast<size_t>(t)];
    const Matrix one{w.head.type, std::min(kTile, w.head.n - tile * kTile), w.head.k, w.head.tile_bytes, w.head.tiles + static_cast<size_t>(tile) * w.head.tile_bytes};
    for (int from = 0, to; from < count; from = to) {
      float* out = wanted[static_cast<size_t>(from)].out;
      for (to = from + 1; to < count && wanted[static_cast<size_t>(to)].out == out + static_cast<size_t>(to - from) * width;) to++;
      k.matmul(one, rows_from(acts, from), to - from, 0, 1, out + t * kTile, width);
    }
  }
}

// The largest of the logits that tiles first … last − 1 have just become, while they are warm.
void Model::Runner::look_over(int first, int last, Lead* mine) const {
  const int from = first * kTile, n = std::min(static_cast<int>(width), last * kTile) - from;
  for (size_t i = 0; i < wanted.size(); i++) {
    if (!wanted[i].best) continue;
    const float* x = wanted[i].out + from;
    const int place = k.argmax(x, n);
    if (const Lead lead{from + place, x[place]}; lead.beats(mine[i])) mine[i] = lead;
  }
}

void Model::Runner::settle_best() {
  for (size_t i = 0; i < wanted.size(); i++) {
    Lead lead;
    for (size_t at = i; at < leads.size(); at += wanted.size())
      if (leads[at].beats(lead)) lead = leads[at];
    if (wanted[i].best) *wanted[i].best = lead.place;
  }
}

// Tasks 0 … tasks − 1, `chunk` at a time: each thread its own contiguous part, so that memory is read in order, then what others have left.
template <class Task, class Meanwhile>
void Model::Runner::share(int thread, size_t stage, int tasks, int chunk, Task&& task, Meanwhile&& meanwhile) {
  const int threads = pool.size();
  Range* now = ranges.data() + stage % 3 * static_cast<size_t>(threads);
  ranges[(stage + 1) % 3 * static_cast<size_t>(threads) + static_cast<size_t>(thread)].taken.store(0, std::memory_order_relaxed);
  for (int step = 0; step < threads; step++) {
    const int owner = (thread + step) % threads;
    const int64_t first = static_cast<int64_t>(tasks) * owner / threads, size = static_cast<int64_t>(tasks) * (owner + 1) / threads - first;
    std::atomic<uint64_t>& taken = now[owner].taken;
    uint64_t seen = taken.load(std::memory_order_relaxed);
    for (;;) {
      const int64_t front = static_cast<int64_t>(seen & 0xffffffffu), back = static_cast<int64_t>(seen >> 32), take = std::min<int64_t>(chunk, size - front - back);
      if (take <= 0) break;
      if (!taken.compare_exchange_weak(seen, seen + (static_cast<uint64_t>(take) << (step ? 32 : 0)), std::memory_order_relaxed)) continue;
      const int64_t start = step ? first + size - back - take : first + front;
      task(static_cast<int>(start), static_cast<int>(start + take));
      seen = taken.load(std::memory_order_relaxed);
    }
  }
  pool.barrier(meanwhile);
}

// What each thread does in a pass: the same stages in the same order.
void Model::Runner::work(int thread) {
  const int n = num_rows(), hidden = c.hidden, threads = pool.size();
  const Residual& mine = residuals[static_cast<size_t>(thread)];
  size_t stage = 0;
  // While waiting for others, a thread fetches the weights its part of the next product begins with.
  const uint8_t *line = nullptr, *last_line = nullptr;
  const auto stage_of = [&](int tasks, int chunk, auto&& task) {
    share(thread, stage++, tasks, std::max(1, chunk), task, [&] {
      if (line >= last_line) return false;
      for (int i = 0; i < 4; i++, line += 64) k.prefetch(line);
      return true;
    });
    line = last_line = nullptr;
  };
  const auto coming = [&](const Matrix& matrix, int first_tile) {
    line = matrix.tiles + static_cast<size_t>(std::min(first_tile, matrix.num_tiles())) * matrix.tile_bytes;
    last_line = std::min(line + kComing, matrix.tiles + static_cast<size_t>(matrix.num_tiles()) * matrix.tile_bytes);
  };
  const auto first_of = [&](int tasks) { return static_cast<int>(static_cast<int64_t>(tasks) * thread / threads); };
  const auto project = [&](const Matrix& matrix, const Acts& a) {
    stage_of(matrix.num_tiles(), matrix.num_tiles() / (threads * 6), [&](int first, int last) { matmul_stage(k, matrix, a, n, first, last, delta, static_cast<size_t>(hidden)); });
  };
  const auto each_row = [&](auto&& work) {
    if (alone) {
      for (int r = 0; r < n; r++) work(r);
    } else {
      stage_of(n, n / (threads * 4), [&](int first, int last) { for (int r = first; r < last; r++) work(r); });
    }
  };
  const auto open_rows = [&](bool added, const float* post_norm, const float* norm, int feature) {
    const int saved = alone && thread ? -1 : feature;
    each_row([&](int r) { open_row(mine, added, post_norm, norm, r, saved); });
  };
  const auto norm_of = [](const std::vector<float>& norm) { return norm.empty() ? nullptr : norm.data(); };

  const Fusion* fusion = w.fusion.get();
  const Acts& entry = fusion && !fusion->first ? mine.joined : mine.normed;  // what the first layer reads
  if (fusion) {
    if (fusion->first) each_row([&](int r) { join(mine, r); });
    if (fusion->first || extent->from_target) project(fusion->fc, fusion->first ? mine.joined : states);
    each_row([&](int r) { enter(mine, r); });
  } else {
    stage_of(n, 1, [&](int first, int last) { for (int r = first; r < last; r++) embed(r); });
    if (alone && thread) std::memcpy(mine.x, residuals[0].x, static_cast<size_t>(n) * static_cast<size_t>(hidden) * sizeof(float));  // thread 0 adds to it only after the next stage
  }
  const int heads = c.heads + 2 * c.kv_heads, part = heads_per_part(), group = c.heads / c.kv_heads, parts = (group + part - 1) / part;
  const int attend_tasks = static_cast<int>(blocks.size()) * c.kv_heads * parts, pairs = c.ff / kGroup;
  const float* post_norm = nullptr;
  const int layers = extent->layers ? extent->layers : c.layers;
  for (int layer = 0; layer < layers; layer++) {
    const Layer& l = w.layers[static_cast<size_t>(layer)];
    if (!fusion) open_rows(layer > 0, post_norm, l.attention_norm.data(), layer);
    stage_of(heads, heads / (threads * 4), [&](int first, int last) { project_heads(l, layer, entry, first, last); });
    coming(l.o, first_of(l.o.num_tiles()));
    stage_of(attend_tasks, attend_tasks / (threads * 8), [&](int first, int last) {
      for (int t = first; t < last; t++) {
        const int from = t % parts * part;
        attend(layer, blocks[static_cast<size_t>(t / parts / c.kv_heads)], t / parts % c.kv_heads, from, std::min(group, from + part), thread);
      }
    });
    if (alone) coming(l.gate, 2 * first_of(pairs));
    project(l.o, mixed);
    if (!alone) coming(l.gate, 2 * first_of(pairs));
    open_rows(true, norm_of(l.post_attention_norm), l.feed_norm.data(), -1);
    coming(l.down, first_of(l.down.num_tiles()));
    // Two tiles at a time: 32 outputs of gate and up are 32 inputs of the next product, one group to quantise.
    stage_of(pairs, pairs / (threads * 8), [&](int first, int last) {
      const size_t stride = static_cast<size_t>(c.ff);
      matmul_stage(k, l.gate, mine.normed, n, 2 * first, 2 * last, gated.x, stride);
      matmul_stage(k, l.up, mine.normed, n, 2 * first, 2 * last, up, stride);
      for (int r = 0; r < n; r++) {
        const size_t at = static_cast<size_t>(r) * stride + static_cast<size_t>(first) * kGroup;
        (c.gelu ? k.gelu_mul : k.silu_mul)(gated.x + at, up + at, (last - first) * kGroup);
        k.quantize(gated, r, first * kGroup, last * kGroup);
      }
    });
    post_norm = norm_of(l.post_feed_norm);
    if (alone && layer + 1 < layers) coming(w.layers[static_cast<size_t>(layer) + 1].q, first_of(heads) * c.head_dim / kTile);
    project(l.down, gated);
    if (!alone && layer + 1 < layers) coming(w.layers[static_cast<size_t>(layer) + 1].q, first_of(heads) * c.head_dim / kTile);
  }
  open_rows(true, post_norm, norm_of(w.norm), fusion ? c.layers : -1);
  if (thread == 0 && !fusion) for (int r = 0; r < n; r++) save_feature(r, c.layers, mine.normed.x + static_cast<size_t>(r) * static_cast<size_t>(hidden));
  if (wanted.empty()) return pool.barrier();
  // The wanted rows side by side, so that the vocabulary's matrix is read once for all of them.
  const bool all = wanted.size() == rows.size();
  if (!all && (alone || thread == 0)) for (size_t i = 0; i < wanted.size(); i++) copy_row(mine.normed, wanted[i].row, mine.wanted, static_cast<int>(i));
  if (!all && !alone) pool.barrier();
  const int tiles = extent->tiles.empty() ? w.head.num_tiles() : static_cast<int>(extent->tiles.size());
  stage_of(tiles, std::min(64, tiles / (threads * 6)), [&](int first, int last) {
    score_head(all ? mine.normed : mine.wanted, first, last);
    look_over(first, last, leads.data() + static_cast<size_t>(thread) * wanted.size());
  });
  if (thread == 0) settle_best();
}

}  // namespace headstart
