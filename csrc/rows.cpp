// Draws that give the same token on every machine: integer noise, and sums and logarithms in a fixed order.
#include "rows.h"

#include <cmath>
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

// Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
void philox(uint64_t key0, uint64_t key1, uint64_t (&x)[4]) {
  for (int round = 0; round < 10; round++) {
    uint64_t high0, low0, high1, low1;
    multiply(0xD2E7470EE14C6C93u, x[0], high0, low0);
    multiply(0xCA5A826395121157u, x[2], high1, low1);
    x[0] = high1 ^ x[1] ^ key0;
    x[1] = low1;
    x[2] = high0 ^ x[3] ^ key1;
    x[3] = low0;
    key0 += 0x9E3779B97F4A7C15u;
    key1 += 0xBB67AE8584CAA73Bu;
  }
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
  int64_t winner = -1, known = -1;
  double first = std::numeric_limits<double>::infinity();
  uint64_t block[4] = {};
  for (int64_t i = 0; i < n; i++) {
    const int64_t token = ids ? ids[i] : i;
    const double p = static_cast<double>(probs[i]);
    if (!(p > 0.0)) continue;
    if (token / 4 != known) {
      known = token / 4;
      block[0] = 1 + static_cast<uint64_t>(known);
      block[1] = 0;
      block[2] = position;
      block[3] = 0;
      philox(seed, 0, block);
    }
    const double u = (static_cast<double>(block[token % 4] >> 12) + 0.5) * 0x1p-52;
    if ((1.0 - u) > first * p * (1.0 + 1e-12)) continue;  // −log u ≥ 1 − u: too late to win, whatever its log
    const double finish = -fixed_log(u) / p;
    if (finish < first || winner < 0) {
      first = finish;
      winner = i;
    }
  }
  return winner;
}

template int64_t race<float>(uint64_t, uint64_t, const float*, const int64_t*, int64_t);
template int64_t race<double>(uint64_t, uint64_t, const double*, const int64_t*, int64_t);

}  // namespace headstart
