// Draws that give the same token on every machine: integer noise, and sums and logarithms in a fixed order.
#include "rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace headstart {
namespace {

constexpr int64_t kBlock = 512;

constexpr int64_t kNoise = 64;  // tokens of a group

// What the 32 bits of the upper word leave of the time until 1: 1 − u is this or more.
double gone_by(uint32_t upper) { return static_cast<double>(~upper) * 0x1p-32; }

// u in (0, 1): 32 bits of the upper word, the upper 20 of the lower, plus a half, over 2^52. All steps are exact.
double uniform_of(uint32_t upper, uint32_t lower) {
  const uint64_t bits = (uint64_t{upper} << 20 | lower >> 12) | 0x3ff0000000000000u;  // as a double: 1 and the bits over 2^52
  double above_one;
  std::memcpy(&above_one, &bits, sizeof above_one);
  return above_one - 1.0 + 0x1p-53;
}

// Who is ahead in a race.
struct Race {
  uint64_t seed, position;
  const Kernels& kernels;
  int64_t winner = -1;
  double first = std::numeric_limits<double>::infinity();  // when the winner's clock rang
  int64_t lower_group = -1;
  uint32_t lower[kNoise] = {};

  void enter(int64_t place, int64_t token, uint32_t upper, double p) {
    // −log u ≥ 1 − u: too late to win, whatever its log.
    if (!(p > 0.0) || gone_by(upper) > first * p * (1.0 + 1e-12)) return;
    if (token / kNoise != lower_group) kernels.noise(seed, position, static_cast<uint32_t>(lower_group = token / kNoise), 1, lower);
    const double finish = -fixed_log(uniform_of(upper, lower[token % kNoise])) / p;
    if (finish < first || winner < 0) {
      first = finish;
      winner = place;
    }
  }
};

// Σ scale·x, in single precision within a block.
double sum_of(const float* x, int64_t n, float scale) {
  double total = 0.0;
  for (int64_t from = 0; from < n; from += kBlock) {
    const int64_t to = n - from < kBlock ? n : from + kBlock;
    float lanes[16] = {};
    int64_t i = from;
    for (; i + 16 <= to; i += 16) for (int l = 0; l < 16; l++) lanes[l] += scale * x[i + l];
    for (int l = 0; i < to; i++, l++) lanes[l] += scale * x[i];
    for (const float lane : lanes) total += static_cast<double>(lane);
  }
  return total;
}

}  // namespace

// Natural log from additions, multiplications and divisions in a fixed order: the same bits on every IEEE machine.
// u = m·2^e with m in [√½, √2); log m = 2·artanh(s), s = (m − 1)/(m + 1), by its series to s^23 (error under 2e-16).
double fixed_log(double u) {
  int exponent = 0;
  double m = std::frexp(u, &exponent);
  if (m < 0.7071067811865476) {
    m *= 2.0;
    exponent--;
  }
  const double s = (m - 1.0) / (m + 1.0), square = s * s;
  double series = 0.0;
  for (int odd = 23; odd > 0; odd -= 2) series = series * square + 1.0 / odd;
  return exponent * 0.6931471805599453 + 2.0 * (s * series);
}

double common(const float* p, const int64_t* ids, const float* q, int64_t count, float scale) {
  double lanes[4] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) for (int l = 0; l < 4; l++) lanes[l] += static_cast<double>(std::min(scale * p[ids[i + l]], q[i + l]));
  for (int l = 0; i < count; i++, l++) lanes[l] += static_cast<double>(std::min(scale * p[ids[i]], q[i]));
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

double beyond(const float* p, int64_t n, const int64_t* ids, const float* q, int64_t count, float scale, float* out) {
  if (!out) return std::max(0.0, sum_of(p, n, scale) - common(p, ids, q, count, scale));
  for (int64_t i = 0; i < n; i++) out[i] = scale * p[i];
  for (int64_t i = 0; i < count; i++) out[ids[i]] = std::max(out[ids[i]] - q[i], 0.0f);
  return sum_of(out, n, 1.0f);  // not a difference of two sums: where little is left, it is divided by
}

int64_t pick(const float* probs, int64_t n, double uniform) {
  std::vector<double> sums;
  sums.reserve(static_cast<size_t>((n + kBlock - 1) / kBlock));
  double total = 0.0;
  for (int64_t from = 0; from < n; from += kBlock) {
    const int64_t to = n - from < kBlock ? n : from + kBlock;
    double lanes[8] = {};
    int64_t i = from;
    for (; i + 8 <= to; i += 8) for (int l = 0; l < 8; l++) lanes[l] += static_cast<double>(probs[i + l]);
    for (int l = 0; i < to; i++, l++) lanes[l] += static_cast<double>(probs[i]);
    sums.push_back(((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7])));
    total += sums.back();
  }
  const double target = uniform * total;
  double before = 0.0;
  for (size_t block = 0; block < sums.size(); before += sums[block++]) {
    if (!(before + sums[block] > target)) continue;
    const int64_t from = static_cast<int64_t>(block) * kBlock, to = n - from < kBlock ? n : from + kBlock;
    double sum = before;
    for (int64_t i = from; i < to; i++) {
      sum += static_cast<double>(probs[i]);
      if (sum > target) return i;
    }
  }
  // uniform · total rounded up to the total
  for (int64_t i = n; i-- > 0;) if (probs[i] > 0.0f) return i;
  return -1;
}

template <class Real>
int64_t race(const Kernels& kernels, uint64_t seed, uint64_t position, const Real* probs, const int64_t* ids, int64_t n) {
  constexpr int kTogether = 16;  // tokens that are passed over without a look at each
  Race state{seed, position, kernels};
  uint32_t upper[kNoise];
  int64_t i = 0;
  if constexpr (std::is_same_v<Real, float>) {
    for (; !ids && i + kNoise <= n; i += kNoise) {
      kernels.noise(seed, position, static_cast<uint32_t>(i / kNoise), 0, upper);
      const unsigned near = kernels.in_time(upper, probs + i, static_cast<float>(state.first * (1.0 + 1e-6)));
      for (int64_t j = 0; j < kNoise; j += kTogether)
        for (int64_t l = j; (near >> (j / kTogether) & 1u) && l < j + kTogether; l++) state.enter(i + l, i + l, upper[l], static_cast<double>(probs[i + l]));
    }
  }
  int64_t known = -1;
  for (; i < n; i++) {
    const int64_t token = ids ? ids[i] : i;
    if (!(probs[i] > Real{0})) continue;
    if (token / kNoise != known) kernels.noise(seed, position, static_cast<uint32_t>(known = token / kNoise), 0, upper);
    state.enter(i, token, upper[token % kNoise], static_cast<double>(probs[i]));
  }
  return state.winner;
}

template int64_t race<float>(const Kernels&, uint64_t, uint64_t, const float*, const int64_t*, int64_t);
template int64_t race<double>(const Kernels&, uint64_t, uint64_t, const double*, const int64_t*, int64_t);

}  // namespace headstart
