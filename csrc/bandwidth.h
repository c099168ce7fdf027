// How fast threads can read memory.
#pragma once
#include <cstddef>

namespace headstart {

// Bytes per second that `threads` threads together read from `bytes` of memory, the best of `repeats`. Throws std::bad_alloc.
double read_bandwidth(int threads, size_t bytes, int repeats);

}  // namespace headstart
