// Eight lanes of AVX2 with FMA and F16C; with HEADSTART_AVXVNNI also the 256-bit dot-product instruction.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace headstart::HEADSTART_ISA {

constexpr int kLanes = 8;

struct F { __m256 v; };
struct I { __m256i v; };
struct B { __m256i v; };

inline F fzero() { return {_mm256_setzero_ps()}; }
inline F fset(float x) { return {_mm256_set1_ps(x)}; }
inline F fload(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void fstore(float* p, F a) { _mm256_storeu_ps(p, a.v); }
inline F fload_half(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
inline void fstore_half(uint16_t* p, F a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F fload_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F fnma(F a, F b, F c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
inline F add(F a, F b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F fmax(F a, F b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F fmin(F a, F b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F fabs(F a) { return {_mm256_and_ps(a.v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)))}; }

inline F swap_pairs(F a) { return {_mm256_permute_ps(a.v, 0xB1)}; }
inline float largest_of(F a) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
inline bool any_not_zero(F a) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, _mm256_setzero_ps(), _CMP_NEQ_UQ)) != 0; }

inline F keep_if_at_least(F value, F x, F limit) { return {_mm256_and_ps(value.v, _mm256_cmp_ps(x.v, limit.v, _CMP_GE_OQ))}; }

inline I izero() { return {_mm256_setzero_si256()}; }
inline I iset(int32_t x) { return {_mm256_set1_epi32(x)}; }
inline I iadd(I a, I b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline int32_t sum_of(I a) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
}
inline F to_float(I a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline I round_to_int(F a) { return {_mm256_cvtps_epi32(a.v)}; }
inline F exp2_int(I n) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.v, _mm256_set1_epi32(127)), 23))};
}
inline I iload_u8(const uint8_t* p) { return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))}; }
inline I iload_s8(const int8_t* p) { return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))}; }
inline void istore(int32_t* p, I a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
inline void istore_s8(int8_t* p, I a) {  // values fit in a byte
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
inline I iand(I a, int32_t mask) { return {_mm256_and_si256(a.v, _mm256_set1_epi32(mask))}; }
inline I ior(I a, I b) { return {_mm256_or_si256(a.v, b.v)}; }
template <int N> inline I ishr(I a) { return {_mm256_srli_epi32(a.v, N)}; }
template <int N> inline I ishl(I a) { return {_mm256_slli_epi32(a.v, N)}; }

inline B bload(const uint8_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
constexpr int kByteZero = 128;
inline B bload_byte(const uint8_t* p) { return bload(p); }
inline B low_nibbles(B a) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(15))}; }
inline B high_nibbles(B a) { return {_mm256_and_si256(_mm256_srli_epi16(a.v, 4), _mm256_set1_epi8(15))}; }
template <int SHIFT, int MASK> inline B with_high(B w, B bits) {
  const __m256i moved = SHIFT > 4 ? _mm256_srli_epi16(bits.v, SHIFT > 4 ? SHIFT - 4 : 0) : _mm256_slli_epi16(bits.v, SHIFT > 4 ? 0 : 4 - SHIFT);
  return {_mm256_or_si256(w.v, _mm256_and_si256(moved, _mm256_set1_epi8(char(MASK << 4))))};
}
using Inputs = const int8_t*;
inline Inputs inputs_at(const int8_t* a) { return a; }
inline __m256i four_bytes(const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  return _mm256_set1_epi32(four);
}
#if defined(HEADSTART_AVXVNNI)
template <int C> inline I dot_small(I acc, B w, Inputs a) { return {_mm256_dpbusd_avx_epi32(acc.v, w.v, four_bytes(a + 4 * C))}; }
template <int C> inline I dot_byte(I acc, B w, Inputs a) { return dot_small<C>(acc, w, a); }
#else
template <int C> inline I dot_small(I acc, B w, Inputs a) {  // 2 · 63 · 127 fits in 16 bits: no saturation
  const __m256i pairs = _mm256_maddubs_epi16(w.v, four_bytes(a + 4 * C));
  return {_mm256_add_epi32(acc.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}
template <int C> inline I dot_byte(I acc, B w, Inputs a) {  // 2 · 255 · 127 does not: even and odd bytes apart
  const __m256i x = four_bytes(a + 4 * C), ones = _mm256_set1_epi16(1), low = _mm256_set1_epi16(0x00ff);
  const __m256i even = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_and_si256(w.v, low), x), ones);
  const __m256i odd = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_andnot_si256(low, w.v), x), ones);
  return {_mm256_add_epi32(acc.v, _mm256_add_epi32(even, odd))};
}
#endif
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }  // into the second cache

// Numbers of 32 bits in the lower halves of lanes of 64; what is in the upper ones does not matter.
constexpr int kWords = 4;
struct W { __m256i v; };
inline W wset(uint32_t x) { return {_mm256_set1_epi64x(x)}; }
inline W wcount(uint32_t first) { return {_mm256_add_epi64(_mm256_set1_epi64x(first), _mm256_set_epi64x(3, 2, 1, 0))}; }
inline W product(W a, W b) { return {_mm256_mul_epu32(a.v, b.v)}; }  // all 64 bits of it
inline W upper(W a) { return {_mm256_srli_epi64(a.v, 32)}; }
inline W wxor(W a, W b) { return {_mm256_xor_si256(a.v, b.v)}; }
inline void wstore(uint32_t* p, W a) {
  const __m256i together = _mm256_permutevar8x32_epi32(a.v, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(together));
}

}  // namespace headstart::HEADSTART_ISA
