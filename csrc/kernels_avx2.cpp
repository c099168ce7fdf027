// The kernels for one instruction set; compiled with its flags, called only where the CPU has it.
#define HEADSTART_ISA avx2
#define HEADSTART_ISA_NAME "avx2"
#include "simd_avx2.h"

#include "kernels.inc"
