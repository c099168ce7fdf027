// Which kernels this build holds and this CPU can run.
#include <cstring>
#include <initializer_list>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#include "kernels.h"

namespace headstart {

#define HEADSTART_TABLE(isa) \
  namespace isa { const Kernels* table(); }
HEADSTART_TABLE(portable)
#if defined(HEADSTART_HAS_AVX2)
HEADSTART_TABLE(avx2)
#endif
#if defined(HEADSTART_HAS_AVXVNNI)
HEADSTART_TABLE(avxvnni)
#endif
#if defined(HEADSTART_HAS_AVX512VNNI)
HEADSTART_TABLE(avx512vnni)
#endif

#if defined(__x86_64__) || defined(__i386__)

namespace {
// `__builtin_cpu_supports` also asks whether the system saves the wide registers. Not every compiler knows f16c and avxvnni there.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}
bool has_avxvnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }
bool has_avx512vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
}  // namespace
#endif

const Kernels* kernels_portable() { return portable::table(); }

const Kernels* kernels_avx2() {
#if defined(HEADSTART_HAS_AVX2)
  if (has_avx2()) return avx2::table();
#endif
  return nullptr;
}

const Kernels* kernels_avxvnni() {
#if defined(HEADSTART_HAS_AVXVNNI)
  if (has_avx2() && has_avxvnni()) return avxvnni::table();
#endif
  return nullptr;
}

const Kernels* kernels_avx512vnni() {
#if defined(HEADSTART_HAS_AVX512VNNI)
  if (has_avx512vnni()) return avx512vnni::table();
#endif
  return nullptr;
}

const Kernels* kernels_named(const char* name) {
  for (const Kernels* k : {kernels_avx512vnni(), kernels_avxvnni(), kernels_avx2(), kernels_portable()})
    if (k && std::strcmp(k->name, name) == 0) return k;
  return nullptr;
}

const Kernels* kernels_best() {
  for (const Kernels* k : {kernels_avx512vnni(), kernels_avxvnni(), kernels_avx2()})
    if (k) return k;
  return kernels_portable();
}

}  // namespace headstart
