#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512")
#include "kernels.h"
#define V 16
#define NAME(x) avx512_##x
#include "kernels.inc"
