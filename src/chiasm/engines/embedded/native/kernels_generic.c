/* For every other CPU (and compiler: only gcc takes the target of a whole file), with vectors that all have. */
#define LANES 4
#define TABLE generic_kernels
#define TABLE_NAME "generic"
#include "kernels.inc"
