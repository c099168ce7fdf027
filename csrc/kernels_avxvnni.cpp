// The kernels for one instruction set; compiled with its flags, called only where the CPU has it.
#define HEADSTART_ISA avxvnni
#define HEADSTART_ISA_NAME "avxvnni"
#define HEADSTART_AVXVNNI 1
#include "simd_avx2.h"

#include "kernels.inc"
