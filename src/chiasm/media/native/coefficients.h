/* Weights of Pillow's antialiased resize: fixed point with 22 bits behind the point, one run of source pixels for each
 * output pixel. Our own statement of its arithmetic; tests compare it with Pillow bit for bit. */
#ifndef CHIASM_COEFFICIENTS_H
#define CHIASM_COEFFICIENTS_H

#include <stdbool.h>
#include <stdint.h>

#define PRECISION 22
#define LOW_BITS 11
#define GROUP 4 /* taps of one SIMD step */

/* As Pillow numbers them. */
enum { LANCZOS = 1, BILINEAR = 2, BICUBIC = 3 };

typedef struct {
    long size;      /* output pixels */
    long taps;      /* room for each, a multiple of GROUP; those beyond `counts` are 0 */
    int32_t *first; /* [size] first source pixel */
    int32_t *counts; /* [size] */
    int32_t *weights; /* [size, taps] */
    int16_t *halves;  /* [size, taps / GROUP, 2, GROUP] weights >> LOW_BITS, then their low bits; NULL without `coefficients_halve` */
} coefficients;

/* False when there is no memory. `filter` is one of the above. */
bool coefficients_make(coefficients *c, int filter, long from, long to);

/* The source pixels that `count` output pixels from `at` on are made of. */
void coefficients_span(int filter, long from, long to, long at, long count, long *first, long *end);

/* Keep those of `count` output pixels from `at` on; their memory then is as large as they are. */
void coefficients_keep(coefficients *c, long at, long count);

/* Make the halves. False when there is no memory. */
bool coefficients_halve(coefficients *c);

void coefficients_free(coefficients *c);

#endif
