// Compares each instruction set of this build that this CPU runs with portable code, to the bit: every kernel on random numbers, and
// whole passes of GGUF models. For CPUs the Python tests cannot reach, e.g. Arm under an emulator: tests/native/test_arm.py.
//
//   check_sets sets                     their names, the fastest first
//   check_sets kernels                  every kernel of every set
//   check_sets models THREADS FILE…     a token a pass on portable code, against chains, trees, kept paths and batches on every set
//   check_sets twins FILE               sets with a fault in them, which the checks above must find
//
// A line a check on stdout; exit status 0: all is equal. It does not know whether portable code is right; tests/native/test_kernels.py
// compares that with float64.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "check_kernels.h"
#include "check_models.h"

namespace {

using namespace headstart;

// Prints what a check came to; true where all numbers were equal and there were some.
bool report(const char* set, const char* name, const Comparison& c) {
  std::printf("%-10s %-28s %9llu numbers, %llu differ\n", set, name, static_cast<unsigned long long>(c.numbers), static_cast<unsigned long long>(c.different));
  std::fflush(stdout);
  return c.numbers > 0 && c.different == 0;
}

bool check_kernels(const Kernels& set) {
  bool all = true;
  for (const KernelCheck& check : kKernelChecks) {
    Comparison c;
    check.run(set, *kernels_portable(), c);
    all = report(set.name, check.name, c) && all;
  }
  return all;
}

bool check_model(int threads, const char* path) {
  const Scorer reference(path, 1, *kernels_portable());
  bool all = true;
  for (const Kernels* set : kernels_here()) {
    Comparison c;
    compare_passes(Scorer(path, threads, *set), reference, c);
    all = report(set->name, std::strrchr(path, '/') ? std::strrchr(path, '/') + 1 : path, c) && all;
  }
  return all;
}

// ---- twins -------------------------------------------------------------------------------------------------------------------

void flip_last_bit(float* x) {
  uint32_t bits;
  std::memcpy(&bits, x, 4);
  bits ^= 1;
  std::memcpy(x, &bits, 4);
}

// Each fault shows only in a corner: the last of many rows, a tail, one half group, a tie.
const std::vector<std::pair<const char*, std::function<void(Kernels&)>>> kTwins = {
    {"matmul", [](Kernels& k) {
       k.matmul = [](const Matrix& w, const Acts& a, int rows, int first, int last, float* out, size_t stride) {
         kernels_portable()->matmul(w, a, rows, first, last, out, stride);
         if (rows == 33) flip_last_bit(out + 32 * stride + w.n - 1);
       };
     }},
    {"quantize", [](Kernels& k) {
       k.quantize = [](const Acts& a, int row, int first, int last) {
         kernels_portable()->quantize(a, row, first, last);
         if (row == 8) a.minus_half_sum[2 * (size_t(row) * size_t(a.k) + size_t(last)) / kGroup - 1]++;
       };
     }},
    {"rms_norm", [](Kernels& k) {
       k.rms_norm = [](const float* x, const float* weight, float eps, int n, float* out) {
         kernels_portable()->rms_norm(x, weight, eps, n, out);
         if (n % 16 == 15) flip_last_bit(out + n - 1);
       };
     }},
    {"silu_mul", [](Kernels& k) {
       k.silu_mul = [](float* gate, const float* up, int n) {
         kernels_portable()->silu_mul(gate, up, n);
         if (n % 8 == 7) flip_last_bit(gate + n - 1);
       };
     }},
    {"gelu_mul", [](Kernels& k) {
       k.gelu_mul = [](float* gate, const float* up, int n) {
         kernels_portable()->gelu_mul(gate, up, n);
         if (n % 8 == 7) flip_last_bit(gate + n - 1);
       };
     }},
    {"attend", [](Kernels& k) { k.attend = attend_without_one; }},
    {"add", [](Kernels& k) {
       k.add = [](float* x, const float* more, int n) {
         kernels_portable()->add(x, more, n);
         if (n % 8 == 7) flip_last_bit(x + n - 1);
       };
     }},
    {"rotate", [](Kernels& k) {  // of every width as if pairs were far apart
       k.rotate = [](float* head, const float* turn, int dim, bool) { kernels_portable()->rotate(head, turn, dim, false); };
     }},
    {"to_half", [](Kernels& k) {  // cuts off instead of rounding
       k.to_half = [](const float* x, uint16_t* out, int n) {
         for (int i = 0; i < n; i++) out[i] = float_to_half(bits_to_float(float_to_bits(x[i]) & 0xffffe000));
       };
     }},
    {"noise", [](Kernels& k) {  // a wrong bit in one token
       k.noise = [](uint64_t seed, uint64_t position, uint32_t group, uint32_t half, uint32_t* words) {
         kernels_portable()->noise(seed, position, group, half, words);
         words[63] ^= 1;
       };
     }},
    {"in_time", [](Kernels& k) {  // never the last sixteen
       k.in_time = [](const uint32_t* words, const float* probs, float limit) { return kernels_portable()->in_time(words, probs, limit) & 7u; };
     }},
    {"argmax", [](Kernels& k) {  // the last of equals
       k.argmax = [](const float* x, int n) {
         int best = 0;
         for (int i = 0; i < n; i++) {
           if (x[i] != x[i]) return i;
           if (x[i] >= x[best]) best = i;
         }
         return best;
       };
     }},
};

// Whether every fault is found by the check of the kernel it is in, and attention's by whole passes as well.
bool find_twins(const char* path) {
  bool all = true;
  for (const auto& [name, spoil] : kTwins) {
    Kernels twin = *kernels_portable();
    spoil(twin);
    Comparison c;
    for (const KernelCheck& check : kKernelChecks)
      if (std::strcmp(check.name, name) == 0) check.run(twin, *kernels_portable(), c);
    if (!c.different) all = false, std::printf("the twin in %s was missed\n", name);
  }
  Kernels twin = *kernels_portable();
  twin.attend = attend_without_one;
  Comparison c;
  compare_passes(Scorer(path, 1, twin), Scorer(path, 1, *kernels_portable()), c);
  if (!c.different) all = false, std::printf("whole passes missed the twin in attend\n");
  std::printf("%zu twins, %s\n", kTwins.size(), all ? "all found" : "not all found");
  return all;
}

}  // namespace

int main(int count, char** words) {
  const std::string verb = count > 1 ? words[1] : "";
  bool all = true;
  if (verb == "sets" && count == 2) {
    for (const Kernels* set : kernels_here()) std::printf("%s\n", set->name);
  } else if (verb == "kernels" && count == 2) {
    for (const Kernels* set : kernels_here()) all = check_kernels(*set) && all;
  } else if (verb == "models" && count > 3 && std::atoi(words[2]) > 0) {
    for (int i = 3; i < count; i++) all = check_model(std::atoi(words[2]), words[i]) && all;
  } else if (verb == "twins" && count == 3) {
    all = find_twins(words[2]);
  } else {
    std::fprintf(stderr, "usage: check_sets sets | kernels | models THREADS FILE… | twins FILE\n");
    return 2;
  }
  return all ? 0 : 1;
}
