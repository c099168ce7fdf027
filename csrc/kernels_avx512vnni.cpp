// The kernels for one instruction set; compiled with its flags, called only where the CPU has it.
#define HEADSTART_ISA avx512vnni
#define HEADSTART_ISA_NAME "avx512vnni"
#include "simd_avx512.h"

#include "kernels.inc"
