// How fast threads can read memory: the yardstick for a pass that scores one token, which reads every weight once.
#include "bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "pool.h"

namespace headstart {
namespace {

constexpr size_t kAhead = 4096;  // as the kernels ask for memory

uint64_t read_all(const uint64_t* words, size_t count) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    __builtin_prefetch(words + i + kAhead / sizeof(uint64_t));
    for (size_t j = 0; j < 8; j++) sums[j] ^= words[i + j];
  }
  uint64_t all = 0;
  for (uint64_t sum : sums) all ^= sum;
  return all;
}

}  // namespace

double read_bandwidth(int threads, size_t bytes, int repeats) {
  const size_t part = bytes / static_cast<size_t>(threads) / 4096 * 4096, size = part * static_cast<size_t>(threads);
  void* memory = mmap(nullptr, size + kAhead, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  madvise(memory, size + kAhead, MADV_HUGEPAGE);
#endif
  uint8_t* start = static_cast<uint8_t*>(memory);
  Pool pool(threads);
  std::vector<uint64_t> sums(static_cast<size_t>(threads) * 8);
  double best = 0.0;
  for (int repeat = 0; repeat <= repeats; repeat++) {  // the first run writes: memory nobody wrote is one page of zeros
    const auto before = std::chrono::steady_clock::now();
    pool.run([&](int thread) {
      uint8_t* mine = start + static_cast<size_t>(thread) * part;
      if (repeat == 0) std::memset(mine, 1, part);
      else sums[static_cast<size_t>(thread) * 8] ^= read_all(reinterpret_cast<const uint64_t*>(mine), part / sizeof(uint64_t));
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
    if (repeat) best = std::max(best, static_cast<double>(size) / seconds);
  }
  munmap(memory, size + kAhead);
  volatile uint64_t kept = 0;  // or a compiler would see that nobody asks for the sums
  for (uint64_t sum : sums) kept = kept ^ sum;
  return best;
}

}  // namespace headstart
