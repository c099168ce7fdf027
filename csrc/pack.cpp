// File blocks → integers and scales → tiles, or → floats. One function per type takes a block apart; everything else is shared.
#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.h"

namespace headstart {
namespace {

// One block of the file, taken apart. K-quants: sc and mn are the 6-bit scales and minimums of 8 groups (Q6_K: sc holds 16 signed).
struct Block {
  uint8_t q[256];
  uint16_t d = 0, m = 0;
  uint8_t sc[16], mn[8];
};

uint16_t read16(const uint8_t* p) {
  uint16_t x;
  std::memcpy(&x, p, 2);
  return x;
}
uint32_t read32(const uint8_t* p) {
  uint32_t x;
  std::memcpy(&x, p, 4);
  return x;
}

void nibbles(const uint8_t* qs, uint32_t high, uint8_t* q) {
  for (int j = 0; j < 16; j++) {
    q[j] = static_cast<uint8_t>((qs[j] & 15) | ((high >> j) & 1) << 4);
    q[j + 16] = static_cast<uint8_t>((qs[j] >> 4) | ((high >> (j + 16)) & 1) << 4);
  }
}

void k_scales(const uint8_t* s, Block& b) {  // twelve bytes: eight 6-bit scales and eight 6-bit minimums
  for (int j = 0; j < 4; j++) {
    b.sc[j] = s[j] & 63;
    b.mn[j] = s[j + 4] & 63;
    b.sc[j + 4] = static_cast<uint8_t>((s[j + 8] & 15) | (s[j] >> 6) << 4);
    b.mn[j + 4] = static_cast<uint8_t>((s[j + 8] >> 4) | (s[j + 4] >> 6) << 4);
  }
}

void k_nibbles(const uint8_t* qs, const uint8_t* qh, uint8_t* q) {
  for (int j = 0; j < 4; j++)
    for (int l = 0; l < 32; l++) {
      const uint8_t bits = qh ? static_cast<uint8_t>(qh[l] >> (2 * j)) : 0;
      q[64 * j + l] = static_cast<uint8_t>((qs[32 * j + l] & 15) | (bits & 1) << 4);
      q[64 * j + 32 + l] = static_cast<uint8_t>((qs[32 * j + l] >> 4) | (bits & 2) << 3);
    }
}

void six_bits(const uint8_t* p, Block& b) {
  for (int n = 0; n < 2; n++)
    for (int l = 0; l < 32; l++) {
      const uint8_t *ql = p + 64 * n, *qh = p + 128 + 32 * n;
      uint8_t* q = b.q + 128 * n;
      q[l] = static_cast<uint8_t>((ql[l] & 15) | (qh[l] & 3) << 4);
      q[l + 32] = static_cast<uint8_t>((ql[l + 32] & 15) | (qh[l] >> 2 & 3) << 4);
      q[l + 64] = static_cast<uint8_t>(ql[l] >> 4 | (qh[l] >> 4 & 3) << 4);
      q[l + 96] = static_cast<uint8_t>(ql[l + 32] >> 4 | (qh[l] >> 6) << 4);
    }
  std::memcpy(b.sc, p + 192, 16);
  b.d = read16(p + 208);
}

void take_apart(Type type, const uint8_t* p, Block& b) {
  switch (type) {
    case Type::Q4_0: b.d = read16(p); return nibbles(p + 2, 0, b.q);
    case Type::Q4_1: b.d = read16(p); b.m = read16(p + 2); return nibbles(p + 4, 0, b.q);
    case Type::Q5_0: b.d = read16(p); return nibbles(p + 6, read32(p + 2), b.q);
    case Type::Q5_1: b.d = read16(p); b.m = read16(p + 2); return nibbles(p + 8, read32(p + 4), b.q);
    case Type::Q8_0:
      b.d = read16(p);
      for (int i = 0; i < 32; i++) b.q[i] = static_cast<uint8_t>(p[2 + i] ^ 0x80);
      return;
    case Type::Q4_K: b.d = read16(p); b.m = read16(p + 2); k_scales(p + 4, b); return k_nibbles(p + 16, nullptr, b.q);
    case Type::Q5_K: b.d = read16(p); b.m = read16(p + 2); k_scales(p + 4, b); return k_nibbles(p + 48, p + 16, b.q);
    case Type::Q6_K: return six_bits(p, b);
    default: return;
  }
}

void write32(uint8_t* p, uint32_t x) { std::memcpy(p, &x, 4); }

// 32 stored integers of one output into its lane of a group.
void place_group(Type type, const uint8_t* q, int lane, uint8_t* group) {
  if (type == Type::Q8_0) {
    for (int c = 0; c < 8; c++) write32(group + 64 * c + 4 * lane, read32(q + 4 * c));
    return;
  }
  for (int c = 0; c < 4; c++)
    write32(group + 64 * c + 4 * lane, (read32(q + 8 * c) & 0x0f0f0f0f) | (read32(q + 8 * c + 4) & 0x0f0f0f0f) << 4);
  const int bits = layout(type).high_bits;
  if (bits == 1) {
    uint32_t plane = 0;
    for (int c = 0; c < 8; c++) plane |= (read32(q + 4 * c) >> 4 & 0x01010101) << c;
    write32(group + 256 + 4 * lane, plane);
  } else if (bits == 2) {
    uint32_t planes[2] = {0, 0};
    for (int c = 0; c < 8; c++) planes[c / 4] |= (read32(q + 4 * c) >> 4 & 0x03030303) << (2 * (c % 4));
    write32(group + 256 + 4 * lane, planes[0]);
    write32(group + 320 + 4 * lane, planes[1]);
  }
}

void put16(uint8_t* halves, size_t index, uint16_t value) { std::memcpy(halves + 2 * index, &value, 2); }

void place_scales(Type type, const Block& b, int lane, uint8_t* s) {
  const size_t at = static_cast<size_t>(lane);
  if (type == Type::Q6_K) {
    for (size_t j = 0; j < 16; j++) s[j * kTile + at] = b.sc[j];
    put16(s + 256, at, b.d);
  } else if (layout(type).super) {
    for (size_t j = 0; j < 8; j++) s[j * kTile + at] = static_cast<uint8_t>((b.sc[j] & 15) | (b.mn[j] & 15) << 4);
    for (size_t j = 0; j < 4; j++)
      s[128 + j * kTile + at] = static_cast<uint8_t>(b.sc[2 * j] >> 4 | (b.mn[2 * j] >> 4) << 2 | (b.sc[2 * j + 1] >> 4) << 4 | (b.mn[2 * j + 1] >> 4) << 6);
    put16(s + 192, at, b.d);
    put16(s + 192, kTile + at, b.m);
  } else {
    put16(s, at, b.d);
    if (layout(type).has_min) put16(s, kTile + at, b.m);
  }
}

size_t float_bytes(Type type) { return type == Type::F32 ? 4 : 2; }

// A group as Q8_0. The scale as it is held is a little off; the integers are those of the exact one, as in every writer of this type.
void write_8_bits(const float* x, float largest, uint8_t* block) {
  const float scale = largest / 127.0f, inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  const uint16_t half = float_to_half(scale);
  std::memcpy(block, &half, 2);
  for (int i = 0; i < kGroup; i++) block[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * inverse)));
}

// A group as Q4_0: of some scales near the one that just holds `top`, that whose sixteen steps leave the least squared error. For
// integers q the best scale is Σxq/Σq², which leaves Σx² − (Σxq)²/Σq².
void write_4_bits(const float* x, float top, uint8_t* block) {
  constexpr float kReach[] = {8.0f, 7.4f, 8.8f};  // which step `top` would be
  constexpr float kWhole = 12582912.0f;                              // added and taken away, it leaves the nearest integer
  constexpr int kLanes = 4;                                          // sums side by side, which compilers turn into vectors
  float best[kGroup] = {}, q[kGroup];
  float scale = 0.0f, gain = 0.0f;
  for (const float reach : kReach) {
    const float inverse = top != 0.0f ? -reach / top : 0.0f;
    for (int i = 0; i < kGroup; i++) {
      const float at = std::min(std::max(x[i] * inverse, -8.0f), 7.0f);
      q[i] = at + kWhole - kWhole;
    }
    float xqs[kLanes] = {}, qqs[kLanes] = {};
    for (int i = 0; i < kGroup; i += kLanes) {
      for (int lane = 0; lane < kLanes; lane++) xqs[lane] += x[i + lane] * q[i + lane];
      for (int lane = 0; lane < kLanes; lane++) qqs[lane] += q[i + lane] * q[i + lane];
    }
    float xq = 0.0f, qq = 0.0f;
    for (int lane = 0; lane < kLanes; lane++) {
      xq += xqs[lane];
      qq += qqs[lane];
    }
    if (qq == 0.0f || xq * xq <= gain * qq) continue;
    gain = xq * xq / qq;
    scale = xq / qq;
    std::copy(q, q + kGroup, best);
  }
  const uint16_t half = float_to_half(scale);
  std::memcpy(block, &half, 2);
  for (int i = 0; i < kGroup / 2; i++)
    block[2 + i] = static_cast<uint8_t>((static_cast<int>(best[i]) + 8) | (static_cast<int>(best[i + kGroup / 2]) + 8) << 4);
}

}  // namespace

const char* type_name(Type type) {
  switch (type) {
    case Type::F32: return "F32";
    case Type::F16: return "F16";
    case Type::BF16: return "BF16";
    case Type::Q8_0: return "Q8_0";
    case Type::Q4_0: return "Q4_0";
    case Type::Q4_1: return "Q4_1";
    case Type::Q5_0: return "Q5_0";
    case Type::Q5_1: return "Q5_1";
    case Type::Q4_K: return "Q4_K";
    case Type::Q5_K: return "Q5_K";
    case Type::Q6_K: return "Q6_K";
  }
  return "unknown";
}

int block_size(Type type) { return layout(type).group_bytes == 0 ? 1 : layout(type).super ? 256 : 32; }

size_t block_bytes(Type type) {
  switch (type) {
    case Type::Q4_0: return 18;
    case Type::Q4_1: return 20;
    case Type::Q5_0: return 22;
    case Type::Q5_1: return 24;
    case Type::Q8_0: return 34;
    case Type::Q4_K: return 144;
    case Type::Q5_K: return 176;
    case Type::Q6_K: return 210;
    default: return float_bytes(type);
  }
}

size_t row_bytes(Type type, int k) { return static_cast<size_t>(k) / static_cast<size_t>(block_size(type)) * block_bytes(type); }

size_t tile_bytes(Type type, int k) {
  const Layout l = layout(type);
  const size_t inputs = static_cast<size_t>(k), groups = inputs / kGroup, span = static_cast<size_t>(l.span);
  if (l.group_bytes == 0) return (inputs * kTile * float_bytes(type) + 63) / 64 * 64;
  return groups / span * scale_area(l, span) + scale_area(l, groups % span) + groups * l.group_bytes;
}

void dequantize_row(Type type, const uint8_t* row, int k, float* out) {
  if (layout(type).group_bytes == 0) {
    for (int i = 0; i < k; i++) {
      if (type == Type::F32) std::memcpy(out + i, row + 4 * static_cast<size_t>(i), 4);
      else if (type == Type::F16) out[i] = half_to_float(read16(row + 2 * static_cast<size_t>(i)));
      else out[i] = bf16_to_float(read16(row + 2 * static_cast<size_t>(i)));
    }
    return;
  }
  const Layout l = layout(type);
  const int size = block_size(type);
  Block b;
  for (int first = 0; first < k; first += size, row += block_bytes(type), out += size) {
    take_apart(type, row, b);
    const float d = half_to_float(b.d), m = half_to_float(b.m);
    for (int i = 0; i < size; i++) {
      const int group = i / kGroup;
      if (type == Type::Q6_K) out[i] = d * static_cast<float>(static_cast<int8_t>(b.sc[i / 16])) * static_cast<float>(b.q[i] - 32);
      else if (l.super) out[i] = d * static_cast<float>(b.sc[group]) * static_cast<float>(b.q[i]) - m * static_cast<float>(b.mn[group]);
      else out[i] = d * static_cast<float>(b.q[i] - l.zero) + m;
    }
  }
}

bool quantize_row(Type to, const float* x, int k, uint8_t* blocks) {
  for (int first = 0; first < k; first += kGroup, x += kGroup, blocks += block_bytes(to)) {
    float top = 0.0f;  // of the largest magnitude, with its sign
    bool finite = true;
    for (int i = 0; i < kGroup; i++) {
      if (std::fabs(x[i]) > std::fabs(top)) top = x[i];
      finite = finite && std::isfinite(x[i]);
    }
    if (!finite || std::fabs(top) / 127.0f > 65504.0f || (top != 0.0f && !std::isfinite(127.0f / std::fabs(top)))) return false;
    if (to == Type::Q8_0) write_8_bits(x, std::fabs(top), blocks);
    else write_4_bits(x, top, blocks);
  }
  return true;
}

void pack_tile(Type type, const uint8_t* first_row, size_t stride, int rows, int k, uint8_t* tile) {
  std::memset(tile, 0, tile_bytes(type, k));
  const Layout l = layout(type);
  const size_t inputs = static_cast<size_t>(k);
  if (l.group_bytes == 0) {
    const size_t width = float_bytes(type);
    for (size_t o = 0; o < static_cast<size_t>(rows); o++)
      for (size_t i = 0; i < inputs; i++) std::memcpy(tile + (i * kTile + o) * width, first_row + o * stride + i * width, width);
    return;
  }
  const size_t groups = inputs / kGroup, span = static_cast<size_t>(l.span), span_bytes = scale_area(l, span) + span * l.group_bytes;
  const size_t per_block = static_cast<size_t>(block_size(type)) / kGroup;
  Block b;
  for (int o = 0; o < rows; o++) {
    const uint8_t* row = first_row + static_cast<size_t>(o) * stride;
    for (size_t g = 0; g < groups; g += per_block, row += block_bytes(type)) {
      take_apart(type, row, b);
      uint8_t* start = tile + g / span * span_bytes;
      uint8_t* inputs_start = start + scale_area(l, std::min(span, groups - g / span * span));
      for (size_t i = 0; i < per_block; i++) place_group(type, b.q + i * kGroup, o, inputs_start + (g % span + i) * l.group_bytes);
      place_scales(type, b, o, start + g % span / per_block * l.scale_bytes);
    }
  }
}

}  // namespace headstart
