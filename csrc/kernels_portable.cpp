// The kernels for one instruction set; compiled with its flags, called only where the CPU has it.
#define HEADSTART_ISA portable
#define HEADSTART_ISA_NAME "portable"
#include "simd_portable.h"

#include "kernels.inc"
