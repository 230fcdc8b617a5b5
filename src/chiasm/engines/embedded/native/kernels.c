#include "kernels.h"

#include <string.h>

extern const kernels generic_kernels;
#if defined(__x86_64__) && !defined(__clang__)
extern const kernels avx2_kernels, avx512_kernels;
#endif

/* Best first. */
static long usable_kernels(const kernels *usable[3]) {
    long count = 0;
#if defined(__x86_64__) && !defined(__clang__)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        usable[count++] = &avx512_kernels;
    if (has_avx2) usable[count++] = &avx2_kernels;
#endif
    usable[count++] = &generic_kernels;
    return count;
}

const kernels *find_kernels(const char *name, long head_dim) {
    const kernels *usable[3];
    const long count = usable_kernels(usable);
    for (long i = 0; i < count; i++)
        if ((!*name || !strcmp(name, usable[i]->name)) && head_dim % usable[i]->lanes == 0) return usable[i];
    return NULL;
}
