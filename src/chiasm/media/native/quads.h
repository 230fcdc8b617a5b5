/* The usual resize, in which both sides change and rows are narrowed first, for processors that add four products of
 * bytes at once: between the passes, the samples of four rows lie next to each other, as the second one multiplies them. */
#ifndef CHIASM_QUADS_H
#define CHIASM_QUADS_H

#include "resize.h"

/* False, before the sink has seen a row, when there is no memory or this is no way to do it. */
bool resize_quads(
    const picture *from, const coefficients *across, const coefficients *down, const passes *p, row_sink sink,
    void *layout);

#endif
