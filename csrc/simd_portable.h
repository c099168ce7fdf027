// Eight lanes of plain C++, the reference for every other backend: the same operations in the same order, lane by lane.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"

namespace headstart::HEADSTART_ISA {

constexpr int kLanes = 8;

struct F { float v[kLanes]; };
struct I { int32_t v[kLanes]; };
struct B { uint8_t v[4 * kLanes]; };

template <class R, class Op> inline R lanes(Op op) {
  R out;
  for (int l = 0; l < kLanes; l++) out.v[l] = op(l);
  return out;
}

inline F fzero() { return lanes<F>([](int) { return 0.0f; }); }
inline F fset(float x) { return lanes<F>([x](int) { return x; }); }
inline F fload(const float* p) { return lanes<F>([p](int l) { return p[l]; }); }
inline void fstore(float* p, F a) { std::memcpy(p, a.v, sizeof a.v); }
inline F fload_half(const uint16_t* p) { return lanes<F>([p](int l) { return half_to_float(p[l]); }); }
inline void fstore_half(uint16_t* p, F a) { for (int l = 0; l < kLanes; l++) p[l] = float_to_half(a.v[l]); }
inline F fload_bf16(const uint16_t* p) { return lanes<F>([p](int l) { return bf16_to_float(p[l]); }); }
inline F fma(F a, F b, F c) { return lanes<F>([&](int l) { return std::fma(a.v[l], b.v[l], c.v[l]); }); }
inline F fnma(F a, F b, F c) { return lanes<F>([&](int l) { return std::fma(-a.v[l], b.v[l], c.v[l]); }); }
inline F add(F a, F b) { return lanes<F>([&](int l) { return a.v[l] + b.v[l]; }); }
inline F sub(F a, F b) { return lanes<F>([&](int l) { return a.v[l] - b.v[l]; }); }
inline F mul(F a, F b) { return lanes<F>([&](int l) { return a.v[l] * b.v[l]; }); }
inline F div(F a, F b) { return lanes<F>([&](int l) { return a.v[l] / b.v[l]; }); }
inline F fmax(F a, F b) { return lanes<F>([&](int l) { return a.v[l] > b.v[l] ? a.v[l] : b.v[l]; }); }
inline F fmin(F a, F b) { return lanes<F>([&](int l) { return a.v[l] < b.v[l] ? a.v[l] : b.v[l]; }); }
inline F fabs(F a) { return lanes<F>([&](int l) { return std::fabs(a.v[l]); }); }

inline F swap_pairs(F a) { return lanes<F>([&](int l) { return a.v[l ^ 1]; }); }
inline float largest_of(F a) {
  float top = a.v[0];
  for (float x : a.v) top = x > top ? x : top;
  return top;
}
inline bool any_not_zero(F a) {
  bool any = false;
  for (float x : a.v) any = any || !(x == 0.0f);
  return any;
}

inline F keep_if_at_least(F value, F x, F limit) { return lanes<F>([&](int l) { return x.v[l] >= limit.v[l] ? value.v[l] : 0.0f; }); }

inline I izero() { return lanes<I>([](int) { return 0; }); }
inline I iset(int32_t x) { return lanes<I>([x](int) { return x; }); }
inline I iadd(I a, I b) { return lanes<I>([&](int l) { return a.v[l] + b.v[l]; }); }
inline int32_t sum_of(I a) {
  int32_t sum = 0;
  for (int32_t x : a.v) sum += x;
  return sum;
}
inline F to_float(I a) { return lanes<F>([&](int l) { return static_cast<float>(a.v[l]); }); }
inline I round_to_int(F a) {  // what the vector instructions give for values no int holds
  return lanes<I>([&](int l) {
    const float x = std::nearbyint(a.v[l]);
    return x >= -2147483648.0f && x < 2147483648.0f ? static_cast<int32_t>(x) : INT32_MIN;
  });
}
inline F exp2_int(I n) {
  return lanes<F>([&](int l) {
    const uint32_t bits = (static_cast<uint32_t>(n.v[l]) + 127u) << 23;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  });
}
inline I iload_u8(const uint8_t* p) { return lanes<I>([p](int l) { return p[l]; }); }
inline I iload_s8(const int8_t* p) { return lanes<I>([p](int l) { return p[l]; }); }
inline void istore(int32_t* p, I a) { std::memcpy(p, a.v, sizeof a.v); }
inline void istore_s8(int8_t* p, I a) { for (int l = 0; l < kLanes; l++) p[l] = static_cast<int8_t>(a.v[l]); }
inline I iand(I a, int32_t mask) { return lanes<I>([&](int l) { return a.v[l] & mask; }); }
inline I ior(I a, I b) { return lanes<I>([&](int l) { return a.v[l] | b.v[l]; }); }
template <int N> inline I ishr(I a) { return lanes<I>([&](int l) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[l]) >> N); }); }
template <int N> inline I ishl(I a) { return lanes<I>([&](int l) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[l]) << N); }); }

template <class Op> inline B bytes(Op op) {
  B out;
  for (int b = 0; b < 4 * kLanes; b++) out.v[b] = static_cast<uint8_t>(op(b));
  return out;
}
inline B bload(const uint8_t* p) { return bytes([p](int b) { return p[b]; }); }
constexpr int kByteZero = 128;
inline B bload_byte(const uint8_t* p) { return bload(p); }
inline B low_nibbles(B a) { return bytes([&](int b) { return a.v[b] & 15; }); }
inline B high_nibbles(B a) { return bytes([&](int b) { return a.v[b] >> 4; }); }
template <int SHIFT, int MASK> inline B with_high(B w, B bits) {
  return bytes([&](int b) { return w.v[b] | ((bits.v[b] >> SHIFT) & MASK) << 4; });
}
using Inputs = const int8_t*;
inline Inputs inputs_at(const int8_t* a) { return a; }
template <int C> inline I dot_small(I acc, B w, Inputs inputs) {
  const int8_t* a = inputs + 4 * C;
  return lanes<I>([&](int l) {
    const uint8_t* x = w.v + 4 * l;
    return acc.v[l] + x[0] * a[0] + x[1] * a[1] + x[2] * a[2] + x[3] * a[3];
  });
}
template <int C> inline I dot_byte(I acc, B w, Inputs a) { return dot_small<C>(acc, w, a); }
inline void prefetch(const void*) {}
inline void prefetch_far(const void*) {}

// Numbers of 32 bits in the lower halves of lanes of 64; what is in the upper ones does not matter.
constexpr int kWords = 1;
struct W { uint64_t v; };
inline W wset(uint32_t x) { return {x}; }
inline W wcount(uint32_t first) { return {first}; }
inline W product(W a, W b) { return {(a.v & 0xffffffffu) * (b.v & 0xffffffffu)}; }  // all 64 bits of it
inline W upper(W a) { return {a.v >> 32}; }
inline W wxor(W a, W b) { return {a.v ^ b.v}; }
inline void wstore(uint32_t* p, W a) { *p = static_cast<uint32_t>(a.v); }

}  // namespace headstart::HEADSTART_ISA
