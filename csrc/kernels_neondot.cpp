// The kernels for one instruction set; compiled with its flags, called only where the CPU has it.
#define HEADSTART_ISA neondot
#define HEADSTART_ISA_NAME "neondot"
#define HEADSTART_DOTPROD 1
#include "simd_neon.h"

#include "kernels.inc"
