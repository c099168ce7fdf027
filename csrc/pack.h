// The bytes of a tile: how sixteen rows of a GGUF tensor are laid out for the kernels, at the file's own bits per weight.
//
// A tile holds 16 outputs × k inputs, span after span, read in one go from its first byte to its last. A span is the scales of some
// groups of 32 inputs (as many as fill whole cache lines), lane by lane, then those groups' quantised inputs: four 64-byte chunks of
// nibbles (chunk c, byte 4l + b: low nibble input 8c + b, high nibble input 8c + 4 + b of output l), then 64 bytes per extra bit plane;
// or for Q8_0 eight chunks of bytes offset by 128. Unquantised types: [k][16] values as they are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace headstart {

struct Layout {
  size_t group_bytes = 0;  // quantised inputs of one group; 0: not quantised
  size_t scale_bytes = 0;  // scales of one group, or of one block of eight groups where `super`
  bool super = false;      // K-quants: eight groups share a block
  bool has_min = false;
  int high_bits = 0;
  int zero = 0;            // weight = scale · (stored − zero)
  int span = 1;            // groups of a span; the last one of a tile may hold fewer
};

constexpr Layout layout(Type type) {
  switch (type) {
    case Type::Q4_0: return {256, 32, false, false, 0, 8, 2};
    case Type::Q4_1: return {256, 64, false, true, 0, 0, 1};
    case Type::Q5_0: return {320, 32, false, false, 1, 16, 2};
    case Type::Q5_1: return {320, 64, false, true, 1, 0, 1};
    case Type::Q8_0: return {512, 32, false, false, 0, 128, 2};
    case Type::Q4_K: return {256, 256, true, true, 0, 0, 8};
    case Type::Q5_K: return {320, 256, true, true, 1, 0, 8};
    case Type::Q6_K: return {384, 288, true, false, 2, 32, 16};
    default: return {};
  }
}

// Bytes of the scales that open a span of so many groups.
constexpr size_t scale_area(const Layout& l, size_t groups) { return ((l.super ? groups / 8 : groups) * l.scale_bytes + 63) / 64 * 64; }

const char* type_name(Type type);
int block_size(Type type);      // inputs of one block of the file
size_t block_bytes(Type type);  // bytes of one block of the file
size_t row_bytes(Type type, int k);
size_t tile_bytes(Type type, int k);

// One row of the file as floats, [k].
void dequantize_row(Type type, const uint8_t* row, int k, float* out);

// Floats [k] as blocks of Q8_0 or Q4_0; false where a number is not finite or too large for it.
bool quantize_row(Type to, const float* x, int k, uint8_t* blocks);

// Rows of the file (`rows` of them, at most 16, the others zero) into one tile.
void pack_tile(Type type, const uint8_t* first_row, size_t stride, int rows, int k, uint8_t* tile);

}  // namespace headstart
