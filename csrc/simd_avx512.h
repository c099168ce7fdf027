// Sixteen lanes of AVX-512 with VNNI. See kernels.inc for what the kernels ask of a backend.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace headstart::HEADSTART_ISA {

constexpr int kLanes = 16;

struct F { __m512 v; };
struct I { __m512i v; };
struct B { __m512i v; };  // kLanes × 4 bytes

inline F fzero() { return {_mm512_setzero_ps()}; }
inline F fset(float x) { return {_mm512_set1_ps(x)}; }
inline F fload(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void fstore(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline F fload_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline void fstore_half(uint16_t* p, F a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F fload_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F fnma(F a, F b, F c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c − a·b
inline F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fmax(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F fmin(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F fabs(F a) { return {_mm512_abs_ps(a.v)}; }

inline F swap_pairs(F a) { return {_mm512_permute_ps(a.v, 0xB1)}; }  // lanes 1 0 3 2 …
inline float largest_of(F a) { return _mm512_reduce_max_ps(a.v); }
inline bool any_not_zero(F a) { return _mm512_cmp_ps_mask(a.v, _mm512_setzero_ps(), _CMP_NEQ_UQ) != 0; }  // NaN is not zero

inline F keep_if_at_least(F value, F x, F limit) { return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_GE_OQ), value.v)}; }  // else 0

inline I izero() { return {_mm512_setzero_si512()}; }
inline I iset(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I iadd(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline int32_t sum_of(I a) { return _mm512_reduce_add_epi32(a.v); }
inline F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I round_to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }  // to nearest, ties to even
inline F exp2_int(I n) {  // 2^n for −126 ≤ n ≤ 127
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23))};
}
inline I iload_u8(const uint8_t* p) { return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
inline I iload_s8(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
inline void istore(int32_t* p, I a) { _mm512_storeu_si512(p, a.v); }
inline void istore_s8(int8_t* p, I a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v)); }
inline I iand(I a, int32_t mask) { return {_mm512_and_si512(a.v, _mm512_set1_epi32(mask))}; }
inline I ior(I a, I b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int N> inline I ishr(I a) { return {_mm512_srli_epi32(a.v, N)}; }
template <int N> inline I ishl(I a) { return {_mm512_slli_epi32(a.v, N)}; }

inline B bload(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
constexpr int kByteZero = 128;  // what stands for nought in the bytes that bload_byte loads and dot_byte takes
inline B bload_byte(const uint8_t* p) { return bload(p); }
inline B low_nibbles(B a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline B high_nibbles(B a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))}; }
// w | ((bits >> shift) & mask) << 4, by byte; shift + 4 may be a left shift
template <int SHIFT, int MASK> inline B with_high(B w, B bits) {
  const __m512i moved = SHIFT > 4 ? _mm512_srli_epi16(bits.v, SHIFT > 4 ? SHIFT - 4 : 0) : _mm512_slli_epi16(bits.v, SHIFT > 4 ? 0 : 4 - SHIFT);
  return {_mm512_ternarylogic_epi32(w.v, moved, _mm512_set1_epi8(char(MASK << 4)), 0xF8)};  // a | (b & c)
}
using Inputs = const int8_t*;  // 32 activations of a row
inline Inputs inputs_at(const int8_t* a) { return a; }
// acc + Σ over the 4 bytes of each lane of w · inputs 4C … 4C + 3; w unsigned, at most 63 (dot_small), or any byte (dot_byte)
template <int C> inline I dot_small(I acc, B w, Inputs a) {
  int32_t four;
  __builtin_memcpy(&four, a + 4 * C, 4);
  return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(four))};
}
template <int C> inline I dot_byte(I acc, B w, Inputs a) { return dot_small<C>(acc, w, a); }
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }  // into the second cache

// Numbers of 32 bits in the lower halves of lanes of 64; what is in the upper ones does not matter.
constexpr int kWords = 8;
struct W { __m512i v; };
inline W wset(uint32_t x) { return {_mm512_set1_epi64(x)}; }
inline W wcount(uint32_t first) { return {_mm512_add_epi64(_mm512_set1_epi64(first), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0))}; }
inline W product(W a, W b) { return {_mm512_mul_epu32(a.v, b.v)}; }  // all 64 bits of it
inline W upper(W a) { return {_mm512_srli_epi64(a.v, 32)}; }
inline W wxor(W a, W b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline void wstore(uint32_t* p, W a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi64_epi32(a.v)); }

}  // namespace headstart::HEADSTART_ISA
