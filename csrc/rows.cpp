// Draws that give the same token on every machine: integer noise, and sums and logarithms in a fixed order.
#include "rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace headstart {
namespace {

constexpr int64_t kBlock = 512;

void multiply(uint64_t a, uint64_t b, uint64_t& high, uint64_t& low) {
#if defined(__SIZEOF_INT128__)
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  high = static_cast<uint64_t>(product >> 64);
  low = static_cast<uint64_t>(product);
#else
  const uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
  const uint64_t middle = (a0 * b0 >> 32) + (a1 * b0 & 0xffffffffu) + a0 * b1;
  high = a1 * b1 + (a1 * b0 >> 32) + (middle >> 32);
  low = a * b;
#endif
}

// A word as a number between 0 and 1: its top 52 bits, plus a half, over 2^52. All steps are exact.
double uniform_of(uint64_t word) {
  const uint64_t bits = (word >> 12) | 0x3ff0000000000000u;  // as a double: 1 and the bits over 2^52
  double above_one;
  std::memcpy(&above_one, &bits, sizeof above_one);
  return above_one - 1.0 + 0x1p-53;
}

// u of the tokens from 4 · `four` on, four at a time: a block of Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as
// easy as 1, 2, 3") for each four.
void uniforms(uint64_t seed, uint64_t position, int64_t four, int fours, double* u) {
  for (int i = 0; i < fours; i++, u += 4) {
    uint64_t a = 1 + static_cast<uint64_t>(four + i), b = 0, c = position, d = 0, key0 = seed, key1 = 0;
    for (int round = 0; round < 10; round++) {
      uint64_t high0, low0, high1, low1;
      multiply(0xD2E7470EE14C6C93u, a, high0, low0);
      multiply(0xCA5A826395121157u, c, high1, low1);
      a = high1 ^ b ^ key0;
      b = low1;
      c = high0 ^ d ^ key1;
      d = low0;
      key0 += 0x9E3779B97F4A7C15u;
      key1 += 0xBB67AE8584CAA73Bu;
    }
    u[0] = uniform_of(a);
    u[1] = uniform_of(b);
    u[2] = uniform_of(c);
    u[3] = uniform_of(d);
  }
}

// Who is ahead in a race.
struct Race {
  int64_t winner = -1;
  double first = std::numeric_limits<double>::infinity();  // when the winner's clock rang

  void enter(int64_t place, double u, double p) {
    // −log u ≥ 1 − u: too late to win, whatever its log.
    if (!(p > 0.0) || (1.0 - u) > first * p * (1.0 + 1e-12)) return;
    const double finish = -fixed_log(u) / p;
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

constexpr int kNoise = 512;  // tokens whose noise is made before any of them is looked at

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
int64_t race(uint64_t seed, uint64_t position, const Real* probs, const int64_t* ids, int64_t n) {
  constexpr int kTogether = 16;  // tokens that are passed over without a look at each
  Race state;
  double u[kNoise];
  int64_t i = 0;
  for (; !ids && i + kNoise <= n; i += kNoise) {
    uniforms(seed, position, i / 4, kNoise / 4, u);
    for (int j = 0; j < kNoise; j += kTogether) {
      const double limit = state.first * (1.0 + 1e-12);
      int near = 0;  // 1 − u above the limit is late, as in `enter`; a little more may pass here than there
      for (int l = 0; l < kTogether; l++) near += !((1.0 - u[j + l]) * (1.0 - 1e-15) > limit * static_cast<double>(probs[i + j + l]));
      for (int l = 0; near && l < kTogether; l++) state.enter(i + j + l, u[j + l], static_cast<double>(probs[i + j + l]));
    }
  }
  int64_t known = -1;
  for (; i < n; i++) {
    const int64_t token = ids ? ids[i] : i;
    if (!(probs[i] > Real{0})) continue;
    if (token / 4 != known) uniforms(seed, position, known = token / 4, 1, u);
    state.enter(i, u[token % 4], static_cast<double>(probs[i]));
  }
  return state.winner;
}

template int64_t race<float>(uint64_t, uint64_t, const float*, const int64_t*, int64_t);
template int64_t race<double>(uint64_t, uint64_t, const double*, const int64_t*, int64_t);

}  // namespace headstart
