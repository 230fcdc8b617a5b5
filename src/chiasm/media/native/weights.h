/* The weights of both sides of a resize, in the forms that the passes take. */
#ifndef CHIASM_WEIGHTS_H
#define CHIASM_WEIGHTS_H

#include "passes.h"

/* Along one side: the picture's pixels, what a resize makes of them, and where what is wanted of that begins. */
typedef struct {
    long length, size, first;
} resized_side;

/* Everything that decides them. */
typedef struct {
    resized_side across, down;
    long width, height; /* that are wanted */
    long left_out;      /* columns at the left that rows come without */
    int channels, filter;
    const passes *passes;
} weights_key;

typedef struct {
    weights_key key;
    coefficients across, down; /* without weights where a side keeps its length */
    blocks blocks;             /* `across`, where that can be had */
    bool has_digits;           /* `down` */
} weights;

/* Those of the key, for the caller alone: new ones, or some that were given back, as pictures of one size follow each other.
 * NULL when there is no memory. Thread-safe. */
weights *weights_take(const weights_key *key);
void weights_give_back(weights *w);

#endif
