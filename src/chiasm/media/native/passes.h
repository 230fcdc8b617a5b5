/* The two passes of a resize over 8-bit samples, and what lays them out, for what the processor can do. */
#ifndef CHIASM_PASSES_H
#define CHIASM_PASSES_H

#include "blocks.h"

#define MAX_ROWS QUAD            /* that a horizontal pass takes at once */
#define SLACK_BYTES (2 * WINDOW) /* that may be read behind a row, whatever they hold, or written behind a target */

typedef struct {
    const char *name;
    /* `rows` rows of `channels` (3 or 4, of which the fourth is left out) to rows of 3 x c->size bytes. */
    void (*across)(
        const coefficients *c, int channels, int rows, const uint8_t *const *sources, uint8_t *const *targets);
    /* Output row `at` from its c->counts[at] source rows, `bytes` bytes each, behind which nothing is read. */
    void (*down)(const coefficients *c, long at, const uint8_t *const *sources, long bytes, uint8_t *target);
    /* `count` pixels to three planes that lie `plane` bytes apart, of which `room` bytes may be written, whatever is there. */
    void (*split)(const uint8_t *pixels, long count, long plane, long room, uint8_t *out);
    /* `count` times [3, plane] bytes to [3, frames, plane] floats, by a table [3, 256] of floats. */
    void (*look_up)(const uint8_t *bytes, const float *table, long count, long plane, long frames, float *out);
    /* Whether there are these, too; then they are taken where weights have digits. */
    bool has_digits;
    /* `across` of QUAD rows. */
    void (*across_rows)(const blocks *b, const uint8_t *const *sources, uint8_t *const *targets);
    /* The same, but the samples of four rows go next to each other; QUAD x SLACK_BYTES may be written behind them. */
    void (*across_quad)(const blocks *b, const uint8_t *const *sources, uint8_t *target);
    /* `down` from QUAD x `count` rows by their weights' digits [count, DIGITS]. */
    void (*down_rows)(
        const uint32_t *digits, long count, const uint8_t *const *sources, long bytes, uint8_t *target);
    /* The same, from `count` quads; QUAD x SLACK_BYTES may be read behind each. */
    void (*down_quads)(
        const uint32_t *digits, long count, const uint8_t *const *sources, long bytes, uint8_t *target);
} passes;

extern const passes generic_passes, avx2_passes, avx512_passes;

/* `down` for the bytes from `start` on. */
void down_rest(
    const coefficients *c, long at, const uint8_t *const *sources, long start, long bytes, uint8_t *target);

/* `split` for the pixels from `start` on. */
void split_rest(const uint8_t *pixels, long start, long count, long plane, uint8_t *out);

/* `look_up` one number after the other. */
void look_up(const uint8_t *bytes, const float *table, long count, long plane, long frames, float *out);

/* The ones that this machine can do, the best first; NULL behind the last. */
const passes *passes_number(int number);

#endif
