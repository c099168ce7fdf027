// Which kernels this build holds and this CPU can run.
#include <cstring>
#include <vector>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
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
#if defined(HEADSTART_HAS_NEON)
HEADSTART_TABLE(neon)
#endif
#if defined(HEADSTART_HAS_NEONDOT)
HEADSTART_TABLE(neondot)
#endif

#if defined(__x86_64__) || defined(__i386__)

namespace {
// `__builtin_cpu_supports` also asks whether the system saves the wide registers. Not every compiler knows f16c and avxvnni there.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}
[[maybe_unused]] bool has_avxvnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
[[maybe_unused]] bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }
[[maybe_unused]] bool has_avx512vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
}  // namespace

#elif defined(HEADSTART_HAS_NEONDOT)

namespace {
bool has_dot_product() {
#if defined(__linux__)
  return getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP, which older headers do not know by name
#elif defined(__APPLE__)
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has;
#else
  return false;  // no way to ask is known here
#endif
}
}  // namespace
#endif

const Kernels* kernels_portable() { return portable::table(); }

std::vector<const Kernels*> kernels_here() {
  std::vector<const Kernels*> here;
#if defined(HEADSTART_HAS_AVX512VNNI)
  if (has_avx512vnni()) here.push_back(avx512vnni::table());
#endif
#if defined(HEADSTART_HAS_AVXVNNI)
  if (has_avx2() && has_avxvnni()) here.push_back(avxvnni::table());
#endif
#if defined(HEADSTART_HAS_AVX2)
  if (has_avx2()) here.push_back(avx2::table());
#endif
#if defined(HEADSTART_HAS_NEONDOT)
  if (has_dot_product()) here.push_back(neondot::table());
#endif
#if defined(HEADSTART_HAS_NEON)
  here.push_back(neon::table());
#endif
  here.push_back(portable::table());
  return here;
}

const Kernels* kernels_named(const char* name) {
  for (const Kernels* kernels : kernels_here())
    if (std::strcmp(kernels->name, name) == 0) return kernels;
  return nullptr;
}

const Kernels* kernels_best() { return kernels_here().front(); }

}  // namespace headstart
