#include "quads.h"

#include <stdlib.h>

typedef struct {
    const picture *from;
    const passes *passes;
    const blocks *across;
    uint8_t *padded;  /* QUAD rows like the source's, with slack behind them */
    uint8_t *ring;    /* `ring_quads` of `quad_bytes` each */
    uint8_t *row;     /* what comes out */
    const uint8_t **sources; /* quads of one output row */
    uint32_t *digits;        /* [quads of one output row, DIGITS] of its weights */
    long ring_quads, quad_bytes;
} work;

static bool work_make(work *w, long taps, long row_bytes) {
    w->ring_quads = taps / QUAD + 2;
    w->quad_bytes = QUAD * (row_bytes + SLACK_BYTES);
    w->padded = calloc(QUAD, (size_t)(w->from->width * w->from->channels + SLACK_BYTES));
    w->ring = calloc((size_t)w->ring_quads, (size_t)w->quad_bytes);
    w->row = malloc((size_t)(row_bytes + SLACK_BYTES));
    w->sources = malloc(sizeof *w->sources * (size_t)w->ring_quads);
    w->digits = malloc(sizeof *w->digits * DIGITS * (size_t)w->ring_quads);
    return w->padded && w->ring && w->row && w->sources && w->digits;
}

static void work_free(work *w) {
    free(w->padded);
    free(w->ring);
    free(w->row);
    free((void *)w->sources);
    free(w->digits);
}

static uint8_t *quad_at(const work *w, long quad) { return w->ring + quad % w->ring_quads * w->quad_bytes; }

/* Rows below the picture have no weight, so any will do. */
static void make_quad(const work *w, long quad) {
    const uint8_t *rows[QUAD];
    const int taken = take_rows(w->from, w->padded, QUAD * quad, rows);
    for (int i = taken; i < QUAD; i++) rows[i] = rows[0];
    w->passes->across_quad(w->across, rows, quad_at(w, quad));
}

bool resize_quads(const picture *from, const weights *weights, row_sink sink, void *layout) {
    const coefficients *down = &weights->down;
    const long row_bytes = 3 * weights->across.size;
    work w = {.from = from, .passes = weights->key.passes, .across = &weights->blocks};
    const bool is_made = work_make(&w, down->taps, row_bytes);
    long made = is_made ? down->first[0] / QUAD : 0;
    for (long y = 0; is_made && y < down->size; y++) {
        const long start = down->first[y] / QUAD;
        const long count = digits_of_row(down, y, down->first[y] % QUAD, w.digits);
        for (; made < start + count; made++) make_quad(&w, made);
        for (long i = 0; i < count; i++) w.sources[i] = quad_at(&w, start + i);
        w.passes->down_quads(w.digits, count, w.sources, row_bytes, w.row);
        sink(layout, y, w.row);
    }
    work_free(&w);
    return is_made;
}
