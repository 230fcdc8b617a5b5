/* The usual resize, in which both sides change and rows are narrowed first, for processors that add four products of
 * bytes at once: between the passes, the samples of four rows lie next to each other, as the second one multiplies them. */
#ifndef CHIASM_QUADS_H
#define CHIASM_QUADS_H

#include "resize.h"

/* False when there is no memory. Both sides' weights are there in digits. */
bool resize_quads(const picture *from, const weights *weights, row_sink sink, void *layout);

#endif
