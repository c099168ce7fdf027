// The kernels for one instruction set; compiled with its flags, called only where the CPU has it.
#define HEADSTART_ISA neon
#define HEADSTART_ISA_NAME "neon"
#include "simd_neon.h"

#include "kernels.inc"
