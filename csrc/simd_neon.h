// Four lanes of Advanced SIMD, which every 64-bit Arm has; with HEADSTART_DOTPROD also its dot-product instruction.
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace headstart::HEADSTART_ISA {

constexpr int kLanes = 4;  // eight rows of sums and a group of weights fill the 32 registers; with more lanes they would not fit

struct F { float32x4_t v; };
struct I { int32x4_t v; };
struct B { uint8x16_t v; };

inline F fzero() { return {vdupq_n_f32(0.0f)}; }
inline F fset(float x) { return {vdupq_n_f32(x)}; }
inline F fload(const float* p) { return {vld1q_f32(p)}; }
inline void fstore(float* p, F a) { vst1q_f32(p, a.v); }
inline F fload_half(const uint16_t* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))}; }
inline void fstore_half(uint16_t* p, F a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.v))); }
inline F fload_bf16(const uint16_t* p) { return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))}; }
inline F fma(F a, F b, F c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
inline F fnma(F a, F b, F c) { return {vfmsq_f32(c.v, a.v, b.v)}; }
inline F add(F a, F b) { return {vaddq_f32(a.v, b.v)}; }
inline F sub(F a, F b) { return {vsubq_f32(a.v, b.v)}; }
inline F mul(F a, F b) { return {vmulq_f32(a.v, b.v)}; }
inline F div(F a, F b) { return {vdivq_f32(a.v, b.v)}; }
// Compared and chosen: Arm's own maximum differs from the other sets' where a number is NaN.
inline F fmax(F a, F b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
inline F fmin(F a, F b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
inline F fabs(F a) { return {vabsq_f32(a.v)}; }

inline F swap_pairs(F a) { return {vrev64q_f32(a.v)}; }
inline float largest_of(F a) { return vmaxvq_f32(a.v); }
inline bool any_not_zero(F a) { return vminvq_u32(vceqzq_f32(a.v)) == 0; }

inline F keep_if_at_least(F value, F x, F limit) {
  return {vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(value.v), vcgeq_f32(x.v, limit.v)))};
}

inline I izero() { return {vdupq_n_s32(0)}; }
inline I iset(int32_t x) { return {vdupq_n_s32(x)}; }
inline I iadd(I a, I b) { return {vaddq_s32(a.v, b.v)}; }
inline int32_t sum_of(I a) { return vaddvq_s32(a.v); }
inline F to_float(I a) { return {vcvtq_f32_s32(a.v)}; }
inline I round_to_int(F a) {  // to nearest, ties to even; Arm's own answer where no int holds the value is not the other sets'
  const uint32x4_t fits = vcaltq_f32(a.v, vdupq_n_f32(2147483648.0f));
  return {vbslq_s32(fits, vcvtnq_s32_f32(a.v), vdupq_n_s32(INT32_MIN))};
}
inline F exp2_int(I n) { return {vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.v, vdupq_n_s32(127)), 23))}; }
inline uint32_t word_at(const void* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}
inline I iload_u8(const uint8_t* p) {
  const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word_at(p))));
  return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide)))};
}
inline I iload_s8(const int8_t* p) {
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(word_at(p))));
  return {vmovl_s16(vget_low_s16(wide))};
}
inline void istore(int32_t* p, I a) { vst1q_s32(p, a.v); }
inline void istore_s8(int8_t* p, I a) {
  const int16x4_t words = vmovn_s32(a.v);
  const uint32_t four = vget_lane_u32(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(words, words))), 0);
  std::memcpy(p, &four, 4);
}
inline I iand(I a, int32_t mask) { return {vandq_s32(a.v, vdupq_n_s32(mask))}; }
inline I ior(I a, I b) { return {vorrq_s32(a.v, b.v)}; }
template <int N> inline I ishr(I a) { return {vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.v), N))}; }
template <int N> inline I ishl(I a) { return {vshlq_n_s32(a.v, N)}; }

inline B bload(const uint8_t* p) { return {vld1q_u8(p)}; }
constexpr int kByteZero = 0;  // products are of signed bytes
inline B bload_byte(const uint8_t* p) { return {veorq_u8(vld1q_u8(p), vdupq_n_u8(128))}; }
inline B low_nibbles(B a) { return {vandq_u8(a.v, vdupq_n_u8(15))}; }
inline B high_nibbles(B a) { return {vshrq_n_u8(a.v, 4)}; }
template <int SHIFT, int MASK> inline B with_high(B w, B bits) {
  uint8x16_t moved = bits.v;
  if constexpr (SHIFT < 4) moved = vshlq_n_u8(bits.v, 4 - SHIFT);
  if constexpr (SHIFT > 4) moved = vshrq_n_u8(bits.v, SHIFT - 4);
  return {vorrq_u8(w.v, vandq_u8(moved, vdupq_n_u8(MASK << 4)))};
}
struct Inputs { int8x16_t half[2]; };  // held in registers: the instruction takes four bytes of one by their number
inline Inputs inputs_at(const int8_t* a) { return {{vld1q_s8(a), vld1q_s8(a + 16)}}; }
template <int C> inline I dot_small(I acc, B w, const Inputs& a) {
#if defined(HEADSTART_DOTPROD)
  return {vdotq_laneq_s32(acc.v, vreinterpretq_s8_u8(w.v), a.half[C / 4], C % 4)};
#else
  const int8x16_t x = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(a.half[C / 4]), C % 4)), y = vreinterpretq_s8_u8(w.v);
  return {vpadalq_s16(acc.v, vpaddq_s16(vmull_s8(vget_low_s8(y), vget_low_s8(x)), vmull_high_s8(y, x)))};  // 2 · 128 · 127 fits in 16 bits
#endif
}
template <int C> inline I dot_byte(I acc, B w, const Inputs& a) { return dot_small<C>(acc, w, a); }
inline void prefetch(const void* p) { __builtin_prefetch(p); }
inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // into the second cache

// Numbers of 32 bits in the lower halves of lanes of 64; what is in the upper ones does not matter.
constexpr int kWords = 2;
struct W { uint64x2_t v; };
inline W wset(uint32_t x) { return {vdupq_n_u64(x)}; }
inline W wcount(uint32_t first) { return {vcombine_u64(vcreate_u64(first), vcreate_u64(uint64_t{first} + 1))}; }
inline W product(W a, W b) { return {vmull_u32(vmovn_u64(a.v), vmovn_u64(b.v))}; }  // all 64 bits of it
inline W upper(W a) { return {vshrq_n_u64(a.v, 32)}; }
inline W wxor(W a, W b) { return {veorq_u64(a.v, b.v)}; }
inline void wstore(uint32_t* p, W a) { vst1_u32(p, vmovn_u64(a.v)); }

}  // namespace headstart::HEADSTART_ISA
