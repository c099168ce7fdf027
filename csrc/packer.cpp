// Tiles are packed slice by slice by all threads, into one piece of memory in the order in which a pass reads them.
#include "packer.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "pack.h"

namespace headstart {
namespace {

constexpr size_t kSlice = 16 << 20;
constexpr int kCompared = 256;  // inputs by whose bytes types are compared

}  // namespace

Model::Weights::~Weights() {
  if (arena) munmap(arena, arena_bytes);
}

void Packer::add(const Tensor* t, Matrix& m, std::optional<Type> widest) {
  m.type = static_cast<Type>(t->type);
  if (widest && row_bytes(m.type, kCompared) > row_bytes(*widest, kCompared)) m.type = *widest;
  m.k = static_cast<int>(t->shape[0]);
  m.n = static_cast<int>(t->shape[1]);
  m.tile_bytes = tile_bytes(m.type, m.k);
  jobs_.push_back({t, &m, bytes_});
  bytes_ += m.tile_bytes * static_cast<size_t>(m.num_tiles());
}

void Packer::pack(Model::Weights& weights, Pool& pool, bool mapped, const std::function<void(double)>& progress) const {
  weights.tile_bytes = bytes_;
  weights.arena_bytes = bytes_ + kBeyond;
  void* memory = mmap(nullptr, weights.arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  weights.arena = static_cast<uint8_t*>(memory);
#if defined(MADV_HUGEPAGE)
  madvise(memory, weights.arena_bytes, MADV_HUGEPAGE);
#endif
  for (const Job& job : jobs_) {
    job.matrix->tiles = weights.arena + job.offset;
    // Slice by slice, so that little of the file is in memory beside its tiles.
    const size_t slice = std::max<size_t>(1, kSlice / job.matrix->tile_bytes), tiles = static_cast<size_t>(job.matrix->num_tiles());
    for (size_t first = 0; first < tiles; first += slice) {
      const size_t last = std::min(tiles, first + slice);
      pack_slice(job, static_cast<int>(first), static_cast<int>(last), weights.arena + job.offset, pool, mapped);
      if (progress) progress(static_cast<double>(job.offset + last * job.matrix->tile_bytes) / static_cast<double>(bytes_));
    }
  }
}

void Packer::pack_slice(const Job& job, int first_tile, int last_tile, uint8_t* out, Pool& pool, bool mapped) {
  const Matrix& m = *job.matrix;
  const Type from = static_cast<Type>(job.tensor->type);
  const size_t stride = row_bytes(from, m.k), held = row_bytes(m.type, m.k);
  std::atomic<int> next{first_tile};
  std::atomic<bool> good{true};
  pool.run([&](int) {
    std::vector<uint8_t> blocks(m.type == from ? 0 : kTile * held);
    std::vector<float> floats(m.type == from ? 0 : static_cast<size_t>(m.k));
    for (int t = next.fetch_add(1); t < last_tile; t = next.fetch_add(1)) {
      const uint8_t* rows = job.tensor->data + static_cast<size_t>(t) * kTile * stride;
      const int count = std::min(kTile, m.n - t * kTile);
      if (m.type != from) {
        for (int r = 0; r < count; r++) {
          dequantize_row(from, rows + static_cast<size_t>(r) * stride, m.k, floats.data());
          if (!quantize_row(m.type, floats.data(), m.k, blocks.data() + static_cast<size_t>(r) * held)) good = false;
        }
        rows = blocks.data();
      }
      pack_tile(m.type, rows, held, count, m.k, out + static_cast<size_t>(t) * m.tile_bytes);
    }
  });
  if (!good) throw FileError("tensor " + in_quotes(job.tensor->name) + " holds numbers that are not finite or beyond what " + type_name(m.type) + " can hold, so it cannot be quantised");
  if (!mapped) return;
  const size_t first = static_cast<size_t>(first_tile) * kTile, last = std::min(static_cast<size_t>(last_tile) * kTile, static_cast<size_t>(m.n));
  WeightFile::release(job.tensor->data + first * stride, (last - first) * stride);
}

}  // namespace headstart
