// What the decoder asks of a CPU: a table of functions, one implementation per instruction set, the same bits from each.
//
// Every function treats rows independently and sums in an order fixed by shape alone. So the result for a row never depends on how
// many rows ride along, on the number of threads or on who does the work: scoring k tokens in one pass is scoring them one by one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headstart {

enum class Type : uint32_t { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30 };

constexpr int kTile = 16;   // outputs of a tile
constexpr int kGroup = 32;  // inputs that share an activation scale

// A weight matrix [n outputs, k inputs] cut into tiles of 16 outputs; see pack.h for the bytes of a tile.
struct Matrix {
  Type type = Type::F32;
  int n = 0, k = 0;
  size_t tile_bytes = 0;
  const uint8_t* tiles = nullptr;
  int num_tiles() const { return (n + kTile - 1) / kTile; }
};

// Activations [rows, k], as floats and as 8-bit integers with one scale per group of 32.
struct Acts {
  int k = 0;
  float* x = nullptr;            // [rows, k]
  int8_t* q = nullptr;           // [rows, k]
  float* scale = nullptr;        // [rows, k/32]
  float* sum = nullptr;          // [rows, k/32] scale · Σ q
  int32_t* minus_half_sum = nullptr;   // [rows, k/16] −Σ q of each half group
};

// What a row may see: slots `first` of its Attention … chain − 1, in order of position, then those of `tail`, in order of position.
struct Seen {
  int chain = 0;
  const int32_t* tail = nullptr;
  int num_tail = 0;
};

// Rows of one sequence against the keys it holds, for the query heads that share one key head.
struct Attention {
  const float* query = nullptr;     // [rows, heads, head_dim], rows `query_stride` apart
  size_t query_stride = 0;
  float scale = 1.0f;               // of the queries
  int rows = 0, heads = 0, head_dim = 0;
  const uint16_t* keys = nullptr;   // [slots/16, head_dim, 16] half floats
  const uint16_t* values = nullptr; // [slots, head_dim] half floats
  int first = 0;                    // first visible slot, the same for all rows
  const Seen* seen = nullptr;       // [rows]
  float* scratch = nullptr;         // rows · heads · (most slots a row sees + 32 + head_dim) floats
  float* out = nullptr;             // [rows, heads, head_dim], rows `out_stride` apart
  size_t out_stride = 0;
};

struct Kernels {
  const char* name;
  // out[r·stride + o] = Σ_i w[o, i]·a[r, i] for the outputs of tiles first … last − 1
  void (*matmul)(const Matrix& w, const Acts& a, int rows, int first, int last, float* out, size_t stride);
  // Fill q, scale, sum and minus_half_sum of one row for inputs first … last − 1 (multiples of 32)
  void (*quantize)(const Acts& a, int row, int first, int last);
  // out = x / rms(x) · weight, [n]
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* out);
  void (*silu_mul)(float* gate, const float* up, int n);  // gate = silu(gate)·up
  void (*gelu_mul)(float* gate, const float* up, int n);  // gate = gelu_tanh(gate)·up
  void (*attend)(const Attention& a);
  void (*add)(float* x, const float* more, int n);  // x += more
  // head[i] = head[i]·turn[i] + partner(i)·turn[dim + i]; the partner is the pair's other number, beside it (interleaved) or dim/2 away
  void (*rotate)(float* head, const float* turn, int dim, bool interleaved);
  void (*to_half)(const float* x, uint16_t* out, int n);
  // index of the largest entry, the first of equals; of the first NaN where there is one
  int (*argmax)(const float* x, int n);
  void (*softmax)(const float* logits, float top, float temperature, int n, float* out);  // e^((logits − top)/temperature), normalised
  double (*at_least)(const float* x, float threshold, int n, int64_t* count);              // Σ of the entries ≥ threshold (finite), and how many
  double (*residual)(const float* p, const float* q, float scale, int n, float* out);      // out = max(scale·p − q, 0); its sum
  // words [64]: the upper (half 0) or lower (1) noise words of a group of tokens, see rows.h
  void (*noise)(uint64_t seed, uint64_t position, uint32_t group, uint32_t half, uint32_t* words);
  // Of 64 tokens, by sixteens: bit s is set where some token i of sixteen s has 1 − (words[i] + 1)/2^32 ≤ limit·probs[i]; it may also
  // be set where one misses that by some millionths
  unsigned (*in_time)(const uint32_t* words, const float* probs, float limit);
  void (*prefetch)(const void* p);
};

const Kernels* kernels_portable();
std::vector<const Kernels*> kernels_here();      // those this build holds and this CPU runs, the fastest first; portable is the last
const Kernels* kernels_named(const char* name);  // nullptr: unknown or not available here
const Kernels* kernels_best();

}  // namespace headstart
