#if defined(__x86_64__) && !defined(__clang__)
#pragma GCC target("avx2,fma")
#define LANES 8
#define TABLE avx2_kernels
#define TABLE_NAME "avx2"
#include "kernels.inc"
#endif
