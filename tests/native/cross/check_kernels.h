// Every kernel on random numbers and at its edges: what an instruction set gives beside what portable code gives.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

#include "half.h"
#include "kernels.h"
#include "pack.h"

namespace headstart {

// Whoever adds a kernel adds its check.
static_assert(sizeof(Kernels) == 17 * sizeof(void*), "kKernelChecks must go through every kernel of the table");

constexpr Type kTypes[] = {Type::F32, Type::F16, Type::BF16, Type::Q8_0, Type::Q4_0, Type::Q4_1, Type::Q5_0, Type::Q5_1, Type::Q4_K, Type::Q5_K, Type::Q6_K};

// How many numbers were compared, and how many of them were not the same bits. One NaN is as good as another.
struct Comparison {
  uint64_t numbers = 0, different = 0;

  template <class T>
  void same(const T* got, const T* expected, size_t n) {
    numbers += n;
    for (size_t i = 0; i < n; i++) {
      if constexpr (std::is_same_v<T, float>) different += std::memcmp(got + i, expected + i, 4) != 0 && !(std::isnan(got[i]) && std::isnan(expected[i]));
      else different += got[i] != expected[i];
    }
  }
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }
  float normal() { return normal_(engine_); }
  std::vector<float> normals(size_t n) {
    std::vector<float> x(n);
    for (float& v : x) v = normal();
    return x;
  }
  std::vector<uint8_t> bytes(size_t n) {
    std::vector<uint8_t> out(n);
    for (uint8_t& b : out) b = static_cast<uint8_t>(engine_());
    return out;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

inline void put_half(uint8_t* at, float x) {
  const uint16_t half = float_to_half(x);
  std::memcpy(at, &half, 2);
}

// A matrix [n, k] as tiles: all patterns of integers, scales of a size that occurs.
struct Weights {
  std::vector<uint8_t> tiles;
  Matrix matrix;

  Weights(Type type, int n, int k, const std::vector<uint8_t>& rows) {
    matrix = {type, n, k, tile_bytes(type, k), nullptr};
    tiles.resize(matrix.tile_bytes * static_cast<size_t>(matrix.num_tiles()) + 65536);  // the kernels may ask for memory beyond
    const size_t stride = row_bytes(type, k);
    for (int t = 0; t < matrix.num_tiles(); t++)
      pack_tile(type, rows.data() + static_cast<size_t>(t) * kTile * stride, stride, std::min(kTile, n - t * kTile), k, tiles.data() + static_cast<size_t>(t) * matrix.tile_bytes);
    matrix.tiles = tiles.data();
  }
};

inline std::vector<uint8_t> random_rows(Type type, int n, int k, Random& random) {
  std::vector<uint8_t> rows = random.bytes(static_cast<size_t>(n) * row_bytes(type, k));
  const size_t block = block_bytes(type);
  for (size_t at = 0; at < rows.size(); at += block) {
    const float size = 0.05f + 0.001f * static_cast<float>(random.below(50));
    if (type == Type::F32) {
      const float x = random.normal();
      std::memcpy(rows.data() + at, &x, 4);
    } else if (type == Type::F16) {
      put_half(rows.data() + at, random.normal());
    } else if (type == Type::BF16) {
      rows[at + 1] = static_cast<uint8_t>((rows[at + 1] & 0x83) | 0x3c);  // no infinities, nothing enormous
    } else {
      put_half(rows.data() + at + (type == Type::Q6_K ? 208 : 0), random.below(9) ? size : 3e-7f);  // subnormal now and then
      if (layout(type).has_min) put_half(rows.data() + at + 2, -size);
    }
  }
  return rows;
}

// Activations [rows, k] and room for their quantised form.
struct Activations {
  std::vector<float> x, scale, sum;
  std::vector<int8_t> q;
  std::vector<int32_t> minus_half_sum;
  Acts acts;

  Activations(std::vector<float> values, int k) : x(std::move(values)), scale(x.size() / kGroup + 1), sum(scale.size()), q(x.size()), minus_half_sum(2 * scale.size()) {
    acts = {k, x.data(), q.data(), scale.data(), sum.data(), minus_half_sum.data()};
  }
  void quantize(const Kernels& kernels) {
    if (acts.k % kGroup) return;
    for (size_t row = 0; row < x.size() / static_cast<size_t>(acts.k); row++) kernels.quantize(acts, static_cast<int>(row), 0, acts.k);
  }
};

// Rows of every size from 10⁻⁶ to 10⁶, a fifth of them zeros, and one row of zeros, negative ones among them.
inline std::vector<float> random_activations(int rows, int k, Random& random) {
  std::vector<float> x = random.normals(static_cast<size_t>(rows) * static_cast<size_t>(k));
  for (int r = 0; r < rows; r++) {
    const float size = std::pow(10.0f, static_cast<float>(random.below(13) - 6));
    for (int i = 0; i < k; i++) {
      float& v = x[static_cast<size_t>(r) * static_cast<size_t>(k) + static_cast<size_t>(i)];
      v = random.below(5) ? v * size : 0.0f;
      if (r == 3) v = i % 2 ? -0.0f : 0.0f;
    }
  }
  return x;
}

// ---- checks ------------------------------------------------------------------------------------------------------------------

inline std::vector<float> product(const Kernels& kernels, const Weights& w, const Acts& a, int rows) {
  const size_t stride = static_cast<size_t>(w.matrix.n);
  std::vector<float> out(static_cast<size_t>(rows) * stride);
  const int middle = w.matrix.num_tiles() / 2;  // in two goes, as threads share it
  kernels.matmul(w.matrix, a, rows, 0, middle, out.data(), stride);
  kernels.matmul(w.matrix, a, rows, middle, w.matrix.num_tiles(), out.data(), stride);
  return out;
}

// Every type, 1 to 33 rows: the bits of portable code, which are those of one row at a time.
inline void check_matmul(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(1);
  for (Type type : kTypes)
    for (int k : {block_size(type) == 256 ? 256 : 32, block_size(type) == 1 ? 131 : block_size(type) == 256 ? 768 : 160}) {
      const int n = k < 200 ? 37 : 21, most = 33;
      const Weights w(type, n, k, random_rows(type, n, k, random));
      Activations a(random_activations(most, k, random), k);
      a.quantize(plain);
      std::vector<float> alone;
      for (int row = 0; row < most; row++) {
        const size_t at = static_cast<size_t>(row) * static_cast<size_t>(k), group = at / kGroup;
        const std::vector<float> one = product(plain, w, {k, a.x.data() + at, a.q.data() + at, a.scale.data() + group, a.sum.data() + group, a.minus_half_sum.data() + 2 * group}, 1);
        alone.insert(alone.end(), one.begin(), one.end());
      }
      for (int rows = 1; rows <= most; rows++) c.same(product(set, w, a.acts, rows).data(), alone.data(), static_cast<size_t>(rows * n));
    }
}

// All weight bits set, none, or the highest alone or missing, against the largest activations of either sign: nothing saturates.
inline void check_extremes(const Kernels& set, const Kernels& plain, Comparison& c) {
  constexpr int k = 256, n = 16, rows = 9;
  std::vector<float> x(rows * k, 1.0f);
  for (int i = 0; i < rows * k; i++) if (i / k % 3 == 1 || (i / k % 3 == 2 && i % 2)) x[static_cast<size_t>(i)] = -1.0f;
  Activations a(x, k);
  a.quantize(plain);
  for (Type type : kTypes) {
    if (layout(type).group_bytes == 0) continue;
    for (int fill : {0x00, 0xff, 0x7f, 0x80}) {
      std::vector<uint8_t> data(n * row_bytes(type, k), static_cast<uint8_t>(fill));
      for (size_t at = 0; at < data.size(); at += block_bytes(type)) {
        put_half(data.data() + at + (type == Type::Q6_K ? 208 : 0), 0.01f);
        if (layout(type).has_min) put_half(data.data() + at + 2, 0.02f);
      }
      const Weights w(type, n, k, data);
      c.same(product(set, w, a.acts, rows).data(), product(plain, w, a.acts, rows).data(), rows * n);
    }
  }
}

// Each sixteen-bit float times one.
inline void check_sixteen_bits(const Kernels& set, const Kernels& plain, Comparison& c) {
  constexpr int n = 1 << 16;
  std::vector<uint8_t> rows(2 * n);
  for (int i = 0; i < n; i++) rows[static_cast<size_t>(2 * i)] = static_cast<uint8_t>(i), rows[static_cast<size_t>(2 * i + 1)] = static_cast<uint8_t>(i >> 8);
  Activations a({1.0f}, 1);
  for (Type type : {Type::F16, Type::BF16}) {
    const Weights w(type, n, 1, rows);
    c.same(product(set, w, a.acts, 1).data(), product(plain, w, a.acts, 1).data(), n);
  }
}

// Integers, scales and sums, broken numbers and tiny ones included, whole rows and parts of them.
inline void check_quantize(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(2);
  constexpr int k = 320, rows = 24;
  std::vector<float> x = random_activations(rows, k, random);
  const float infinity = std::numeric_limits<float>::infinity(), odd[] = {NAN, -NAN, infinity, -infinity, 1e-38f, -1e-42f, 3e38f, -2e38f, 1e-30f};
  for (size_t i = 0; i < std::size(odd); i++) x[(10 + i) * k + 31 * (i + 1)] = odd[i];
  for (int i = 0; i < kGroup; i++) x[static_cast<size_t>(k + i)] = i ? static_cast<float>(4 * i) - 63.5f : 127.0f;  // ties
  Activations got(x, k), expected(x, k);
  for (int row = 0; row < rows; row++) {
    set.quantize(got.acts, row, 0, 96);
    set.quantize(got.acts, row, 96, k);
    plain.quantize(expected.acts, row, 0, k);
  }
  const size_t groups = rows * k / kGroup;
  c.same(got.q.data(), expected.q.data(), got.q.size());
  c.same(got.scale.data(), expected.scale.data(), groups);
  c.same(got.sum.data(), expected.sum.data(), groups);
  c.same(got.minus_half_sum.data(), expected.minus_half_sum.data(), 2 * groups);
}

inline void check_rms_norm(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(3);
  for (int n = 1; n <= 330; n += n < 70 ? 1 : 13) {
    const std::vector<float> x = random.normals(static_cast<size_t>(n)), weight = random.normals(static_cast<size_t>(n));
    std::vector<float> got(x.size()), expected(x.size());
    set.rms_norm(x.data(), weight.data(), 1e-6f, n, got.data());
    plain.rms_norm(x.data(), weight.data(), 1e-6f, n, expected.data());
    c.same(got.data(), expected.data(), got.size());
    got = x;  // in place, as the model does
    set.rms_norm(got.data(), weight.data(), 1e-6f, n, got.data());
    c.same(got.data(), expected.data(), got.size());
  }
}

template <void (*Kernels::*GATE)(float*, const float*, int)>
void check_gate(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(4);
  std::vector<float> x = {1e-20f, -1e-20f, 0.0f, -0.0f, 3e4f, -3e4f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN};
  for (int i = -6000; i <= 6000; i++) x.push_back(static_cast<float>(i) * 0.02f), x.push_back(static_cast<float>(i) * 0.0003f);
  const std::vector<float> up = random.normals(x.size());
  std::vector<size_t> sizes(40);
  std::iota(sizes.begin(), sizes.end(), size_t{1});
  sizes.push_back(x.size());
  for (size_t n : sizes) {
    std::vector<float> got(x.end() - static_cast<ptrdiff_t>(n), x.end()), expected = got;
    (set.*GATE)(got.data(), up.data(), static_cast<int>(n));
    (plain.*GATE)(expected.data(), up.data(), static_cast<int>(n));
    c.same(got.data(), expected.data(), n);
  }
}

// All finite exponents at random, ties, and what lies beyond the range of a half.
inline void check_to_half(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(5);
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0xffff0000u; bits += 65521) x.push_back(bits_to_float(bits));
  for (uint16_t h = 0; h < 0x7bff; h++) {
    const float tie = (half_to_float(h) + half_to_float(static_cast<uint16_t>(h + 1))) / 2;
    for (float v : {tie, -tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)}) x.push_back(v);
  }
  for (int n : {1, 3, 7, 8, 15, 17, static_cast<int>(x.size())}) {
    std::vector<uint16_t> got(static_cast<size_t>(n)), expected(static_cast<size_t>(n));
    const float* from = x.data() + x.size() - static_cast<size_t>(n);
    set.to_half(from, got.data(), n);
    plain.to_half(from, expected.data(), n);
    c.same(got.data(), expected.data(), got.size());
  }
}

inline void check_argmax(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(6);
  for (int n = 1; n <= 1100; n += n < 70 ? 1 : 97)
    for (int kind = 0; kind < 4; kind++) {
      std::vector<float> x(static_cast<size_t>(n));
      for (float& v : x) v = kind == 0 ? random.normal() : kind == 3 ? -INFINITY : static_cast<float>(random.below(5) - 2);
      if (kind == 2) x[static_cast<size_t>(random.below(n))] = NAN, x.back() = NAN;
      const int got = set.argmax(x.data(), n), expected = plain.argmax(x.data(), n);
      c.same(&got, &expected, 1);
    }
}

inline void check_noise(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(10);
  for (int i = 0; i < 300; i++) {
    const auto word = [&] { return uint64_t{static_cast<uint32_t>(random.below(1 << 30))} << 34 ^ static_cast<uint64_t>(random.below(1 << 30)); };
    const uint64_t seed = i ? word() : 0, position = i % 3 ? static_cast<uint64_t>(i) : word();
    uint32_t got[64], expected[64];
    set.noise(seed, position, static_cast<uint32_t>(i), static_cast<uint32_t>(i % 2), got);
    plain.noise(seed, position, static_cast<uint32_t>(i), static_cast<uint32_t>(i % 2), expected);
    c.same(got, expected, 64);
  }
}

inline void check_in_time(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(11);
  for (int i = 0; i < 2000; i++) {
    uint32_t words[64];
    float probs[64];
    for (uint32_t& w : words) w = ~(static_cast<uint32_t>(random.below(1 << 30)) >> random.below(28));
    for (float& p : probs) p = random.below(4) ? std::ldexp(std::fabs(random.normal()), -random.below(40)) : 0.0f;
    const float limit = i % 50 ? std::ldexp(1.0f, random.below(20) - 10) : INFINITY;
    const unsigned got = set.in_time(words, probs, limit), expected = plain.in_time(words, probs, limit);
    c.same(&got, &expected, 1);
  }
}

inline void check_add(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(9);
  for (size_t n = 1; n < 70; n++) {
    const std::vector<float> more = random.normals(n);
    std::vector<float> got = random.normals(n), expected = got;
    set.add(got.data(), more.data(), static_cast<int>(n));
    plain.add(expected.data(), more.data(), static_cast<int>(n));
    c.same(got.data(), expected.data(), n);
  }
}

inline void check_rotate(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(10);
  for (size_t dim = 2; dim < 140; dim += dim < 70 ? 2 : 22)
    for (bool interleaved : {false, true}) {
      const std::vector<float> turn = random.normals(2 * dim);
      std::vector<float> got = random.normals(dim), expected = got;
      set.rotate(got.data(), turn.data(), static_cast<int>(dim), interleaved);
      plain.rotate(expected.data(), turn.data(), static_cast<int>(dim), interleaved);
      c.same(got.data(), expected.data(), dim);
    }
}

inline void check_softmax(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(11);
  for (size_t n : {1, 5, 16, 37, 1024, 3001})
    for (float temperature : {1.0f, 0.3f, 1e-30f}) {
      std::vector<float> logits = random.normals(n), got(n), expected(n);
      for (float& x : logits) x *= 20.0f;
      if (n > 2) logits[n / 2] = -std::numeric_limits<float>::infinity();
      const float top = *std::max_element(logits.begin(), logits.end());
      set.softmax(logits.data(), top, temperature, static_cast<int>(n), got.data());
      plain.softmax(logits.data(), top, temperature, static_cast<int>(n), expected.data());
      c.same(got.data(), expected.data(), n);
    }
}

inline void check_at_least(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(12);
  for (size_t n : {1, 5, 16, 37, 1024, 3001})
    for (float threshold : {-1.0f, 0.0f, 0.5f, 100.0f}) {
      const std::vector<float> x = random.normals(n);
      int64_t count = 0, expected_count = 0;
      const double sum = set.at_least(x.data(), threshold, static_cast<int>(n), &count);
      const double expected = plain.at_least(x.data(), threshold, static_cast<int>(n), &expected_count);
      c.same(&sum, &expected, 1);
      c.same(&count, &expected_count, 1);
    }
}

inline void check_residual(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(13);
  for (size_t n : {1, 5, 16, 37, 1024, 3001}) {
    const std::vector<float> p = random.normals(n), q = random.normals(n);
    std::vector<float> got(n), expected(n);
    const double mass = set.residual(p.data(), q.data(), 0.75f, static_cast<int>(n), got.data());
    const double expected_mass = plain.residual(p.data(), q.data(), 0.75f, static_cast<int>(n), expected.data());
    c.same(&mass, &expected_mass, 1);
    c.same(got.data(), expected.data(), n);
  }
}

inline void check_prefetch(const Kernels& set, const Kernels&, Comparison& c) {  // all it may do is nothing
  const std::vector<uint8_t> bytes(4096, 7), before = bytes;
  for (size_t at = 0; at < bytes.size(); at += 64) set.prefetch(bytes.data() + at);
  c.same(bytes.data(), before.data(), bytes.size());
}

// ---- attention ---------------------------------------------------------------------------------------------------------------

constexpr int kSlots = 96;

// Keys and values [slots, dim] as the cache holds them.
struct Held {
  std::vector<uint16_t> keys, values;
  int dim;

  Held(int dim, Random& random) : keys(static_cast<size_t>(kSlots * dim)), values(keys.size()), dim(dim) {
    for (uint16_t& h : keys) h = float_to_half(random.normal());
    for (uint16_t& h : values) h = float_to_half(random.normal());
  }
  uint16_t& key(int slot, int d) { return keys[static_cast<size_t>((slot / kTile * dim + d) * kTile + slot % kTile)]; }
  void move(int from, int to) {
    for (int d = 0; d < dim; d++) key(to, d) = key(from, d), values[static_cast<size_t>(to * dim + d)] = values[static_cast<size_t>(from * dim + d)];
  }
};

// One row's view, from `first`: a chain of `length`, then `tail`.
struct View {
  int length = 0;
  std::vector<int32_t> tail;
};

// [rows, heads, dim] for queries [rows, heads, dim] with a view each.
inline std::vector<float> attention(const Kernels& kernels, const std::vector<float>& query, int heads, const Held& held, int first, const std::vector<View>& views) {
  std::vector<Seen> seen;
  size_t most = 0;
  for (const View& v : views) {
    seen.push_back({first + v.length, v.tail.data(), static_cast<int>(v.tail.size())});
    most = std::max(most, static_cast<size_t>(v.length) + v.tail.size());
  }
  const size_t width = static_cast<size_t>(heads * held.dim);
  std::vector<float> scratch(views.size() * static_cast<size_t>(heads) * (most + 32 + static_cast<size_t>(held.dim))), out(query.size());
  Attention a;
  a.query = query.data(), a.query_stride = width, a.scale = 0.37f;
  a.rows = static_cast<int>(views.size()), a.heads = heads, a.head_dim = held.dim;
  a.keys = held.keys.data(), a.values = held.values.data();
  a.first = first, a.seen = seen.data();
  a.scratch = scratch.data();
  a.out = out.data(), a.out_stride = width;
  kernels.attend(a);
  return out;
}

// Rows with chains, tails and both, together: portable code's bits for each row alone.
inline void check_attend_rows(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(7);
  for (int round = 0; round < 40; round++) {
    const int heads = 1 + round % 14, dim = kTile * (1 + random.below(6)), rows = 1 + random.below(9), first = random.below(20);
    const size_t width = static_cast<size_t>(heads * dim);
    const Held held(dim, random);
    const std::vector<float> query = random.normals(static_cast<size_t>(rows) * width);
    std::vector<View> views(static_cast<size_t>(rows));
    for (View& v : views) {
      v.length = random.below(40);
      for (int slot = 60; slot < kSlots && round % 3; slot++) if (random.below(4) == 0) v.tail.push_back(slot);
      if (v.tail.empty()) v.length++;
    }
    const std::vector<float> got = attention(set, query, heads, held, first, views);
    for (size_t r = 0; r < views.size(); r++) {
      const std::vector<float> mine(query.begin() + static_cast<ptrdiff_t>(r * width), query.begin() + static_cast<ptrdiff_t>((r + 1) * width));
      c.same(got.data() + r * width, attention(plain, mine, heads, held, first, {views[r]}).data(), width);
    }
  }
}

// The same keys in the same order at other slots: portable code's bits on the chain.
inline void check_attend_slots(const Kernels& set, const Kernels& plain, Comparison& c) {
  Random random(8);
  for (int round = 0; round < 30; round++) {
    const int heads = 1 + round % 9, dim = kTile * (1 + random.below(8)), count = 1 + random.below(40), first = random.below(20), split = random.below(count + 1);
    const std::vector<float> query = random.normals(static_cast<size_t>(heads * dim));
    Held held(dim, random);
    const std::vector<float> expected = attention(plain, query, heads, held, first, {{count, {}}});
    View moved{split, {}};  // those after `split` go up, with gaps
    for (int i = count - 1; i >= split; i--) {
      const int below = moved.tail.empty() ? kSlots : moved.tail.back(), to = below - 1 - (random.below(4) == 0 && below - 1 > first + i);
      if (to > first + i) held.move(first + i, to);
      moved.tail.push_back(to);
    }
    std::reverse(moved.tail.begin(), moved.tail.end());
    c.same(attention(set, query, heads, held, first, {moved}).data(), expected.data(), expected.size());
  }
}

inline void check_attend(const Kernels& set, const Kernels& plain, Comparison& c) {
  check_attend_rows(set, plain, c);
  check_attend_slots(set, plain, c);
}

// A twin: no row sees the first slot of a tail.
inline void attend_without_one(const Attention& a) {
  std::vector<Seen> seen(a.seen, a.seen + a.rows);
  for (Seen& s : seen) if (s.num_tail > 1) s.tail++, s.num_tail--;
  Attention blind = a;
  blind.seen = seen.data();
  kernels_portable()->attend(blind);
}

struct KernelCheck {
  const char* name;
  void (*run)(const Kernels& set, const Kernels& plain, Comparison& c);
};

constexpr KernelCheck kKernelChecks[] = {
    {"matmul", check_matmul},
    {"matmul at its extremes", check_extremes},
    {"every half and bfloat", check_sixteen_bits},
    {"quantize", check_quantize},
    {"rms_norm", check_rms_norm},
    {"silu_mul", check_gate<&Kernels::silu_mul>},
    {"gelu_mul", check_gate<&Kernels::gelu_mul>},
    {"attend", check_attend},
    {"add", check_add},
    {"rotate", check_rotate},
    {"to_half", check_to_half},
    {"argmax", check_argmax},
    {"noise", check_noise},
    {"in_time", check_in_time},
    {"softmax", check_softmax},
    {"at_least", check_at_least},
    {"residual", check_residual},
    {"prefetch", check_prefetch},
};

}  // namespace headstart
