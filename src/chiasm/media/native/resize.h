/* Pillow's resize of RGB pictures, row by row: each finished row goes straight to whoever lays it out. */
#ifndef CHIASM_RESIZE_H
#define CHIASM_RESIZE_H

#include "weights.h"

/* Writes `count` rows from `y` on to `rows`; `y` is behind all that was asked for before. */
typedef void (*row_source)(void *state, long y, int count, uint8_t *const *rows);

typedef struct {
    const uint8_t *pixels; /* [height, width, channels], contiguous; NULL where rows come from `source` */
    long width, height;
    int channels; /* 3, or 4 of which the fourth is left out */
    long first;   /* columns of the whole picture that are missing on the left; those on the right have no weight */
    row_source source;
    void *state;
} picture;

/* Takes output row `y`, 3 x width bytes that are valid during the call. */
typedef void (*row_sink)(void *layout, long y, const uint8_t *row);

/* Up to MAX_ROWS rows from `y` on; copied to `padded`, which has room for as many with slack behind each, where reading
 * behind them would leave the picture. Returns how many. */
int take_rows(const picture *from, uint8_t *padded, long y, const uint8_t **rows);

/* Whether the pass downwards comes first. It takes rows in any order, the other way only forwards. */
bool is_down_first(const resized_side *across, const resized_side *down);

/* What is wanted, `width` x `height`, of what `resize` makes. A `source` is for pictures of which both sides change. */
bool resize_part(
    const picture *from, const resized_side *across, const resized_side *down, long width, long height, int filter,
    const passes *p, row_sink sink, void *layout);

/* False when there is no memory; the sink may have seen rows by then. */
bool resize(const picture *from, long width, long height, int filter, const passes *p, row_sink sink, void *layout);

#endif
