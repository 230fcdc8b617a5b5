#if defined(__x86_64__) && !defined(__clang__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")
#define LANES 16
#define TABLE avx512_kernels
#define TABLE_NAME "avx512"
#include "kernels.inc"
#endif
