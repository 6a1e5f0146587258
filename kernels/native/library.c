/* All C operators, once for each instruction set (see common.h): ISA is the set's name. */
#include "../minifloat/cpu.c"
#include "../philox/cpu.c"
#include "../hadamard/cpu.c"
#include "../quantize/cpu.c"
#include "../quantize/stored.c"
#include "../matmul/cpu.c"
