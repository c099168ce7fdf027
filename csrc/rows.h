// Drawing a token from a row: by the inverse of its running sum, or by a race of clocks keyed by (seed, position, token).
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

}  // namespace headstart
