// Drawing a token from a row: by the inverse of its running sum, or by a race of clocks keyed by (seed, position, token); and what a row
// over the whole vocabulary and one over some of its tokens have in common. The same bits on every machine.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace headstart {

// The place in probs [n] where the running sum first exceeds uniform · total, for 0 ≤ uniform < 1; its entry is never zero.
// −1: nothing to draw from.
int64_t pick(const float* probs, int64_t n, double uniform);

// argmin over places of clock(token)/probs, ties to the lower place; ids [n] are the tokens, increasing, or nullptr for 0 … n − 1.
// −1: nothing to draw from.
//
// The clock of token i is −log u, u being 32 bits of an upper word, the upper 20 of a lower one, plus a half, over 2^52. The words come
// from blocks of Philox4x32-10 (Salmon et al. 2011) with key seed and counter (block, 0 or 1 for upper or lower, position), 64-bit numbers
// as two words, the lower one first: word (i / 16) mod 4 of block 16 · (i / 64) + i mod 16. So sixteen blocks are the noise of 64 tokens in
// their order, and lower words are only made of tokens that may win.
template <class Real>
int64_t race(const Kernels& kernels, uint64_t seed, uint64_t position, const Real* probs, const int64_t* ids, int64_t n);

// Natural log of u in (0, 1), within three roundings, the same bits on every IEEE machine.
double fixed_log(double u);

// Σ min(scale·p, q) over the `count` places `ids` of p that q lists.
double common(const float* p, const int64_t* ids, const float* q, int64_t count, float scale);

// out [n] = max(scale·p − q, 0), q zero where it does not list a place; its sum. `out` may be nullptr.
double beyond(const float* p, int64_t n, const int64_t* ids, const float* q, int64_t count, float scale, float* out);

}  // namespace headstart
