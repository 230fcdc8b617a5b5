#pragma GCC target("avx2,fma,f16c")
#include "kernels.h"
#define V 8
#define NAME(x) avx2_##x
#include "kernels.inc"
