// Drawing a token from a row: by the inverse of its running sum, or by a race of clocks keyed by (seed, position, token); and what a row
// over the whole vocabulary and one over some of its tokens have in common. The same bits on every machine.
#pragma once
#include <cstdint>

namespace headstart {

// The place in probs [n] where the running sum first exceeds uniform · total, for 0 ≤ uniform < 1; its entry is never zero.
// −1: nothing to draw from.
int64_t pick(const float* probs, int64_t n, double uniform);

// argmin over places of clock(token)/probs, ties to the lower place; ids [n] are the tokens, increasing, or nullptr for 0 … n − 1.
// −1: nothing to draw from.
//
// The clock of token i is −log u; u comes from word i mod 4 of the Philox4x64-10 block (Salmon et al. 2011) with key (seed, 0) and
// counter (1 + i/4, 0, position, 0): its top 52 bits, plus a half, over 2^52.
template <class Real>
int64_t race(uint64_t seed, uint64_t position, const Real* probs, const int64_t* ids, int64_t n);

// Natural log of u in (0, 1), within three roundings, the same bits on every IEEE machine.
double fixed_log(double u);

// Σ min(scale·p, q) over the `count` places `ids` of p that q lists.
double common(const float* p, const int64_t* ids, const float* q, int64_t count, float scale);

// out [n] = max(scale·p − q, 0), q zero where it does not list a place; its sum. `out` may be nullptr.
double beyond(const float* p, int64_t n, const int64_t* ids, const float* q, int64_t count, float scale, float* out);

}  // namespace headstart
