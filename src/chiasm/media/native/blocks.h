/* A horizontal pass as blocks of 16 sums, for processors that add four products of bytes at once. A weight is three
 * signed digits to base 256; the sums of each digit's products, shifted, are the whole sum to the bit. */
#ifndef CHIASM_BLOCKS_H
#define CHIASM_BLOCKS_H

#include "coefficients.h"

#define QUAD 4    /* taps of one step, and rows whose samples lie next to each other */
#define DIGITS 3  /* of a weight */
#define LANES 16  /* sums of a block */
#define WINDOW 64 /* source bytes that a step chooses from, or twice as many */

typedef struct {
    long count;       /* blocks */
    long lanes;       /* samples that a block makes, at most LANES */
    long groups;      /* room for steps of each block */
    long step;        /* source bytes from one step to the next */
    bool is_wide;     /* steps choose from 2 x WINDOW bytes */
    long *offsets;    /* [count] bytes into the source row */
    long *used;       /* [count] steps */
    uint32_t *tables; /* [count, 1 + DIGITS * groups, LANES] bytes of the window; then, for each step, the digits */
} blocks;

/* Whether there are weights, and all have so few digits: all but those of absurd filters do. */
bool have_digits(const coefficients *c);

/* The digits of the weights of output `at` behind `lead` zeros, and of zeros up to a whole number of QUADs: [.., DIGITS], a
 * byte for each tap. Returns how many QUADs. */
long digits_of_row(const coefficients *c, long at, long lead, uint32_t *digits);

/* False when there is no memory, or the tables would be too large to be of use. */
bool blocks_make(blocks *b, const coefficients *c, int channels);
void blocks_free(blocks *b);

#endif
