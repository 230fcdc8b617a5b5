/* The two passes of a resize over 8-bit samples, and what lays them out, for what the processor can do. */
#ifndef CHIASM_PASSES_H
#define CHIASM_PASSES_H

#include "coefficients.h"

#define MAX_ROWS 4     /* that a horizontal pass takes at once */
#define SLACK_BYTES 64 /* that may be read behind a row, whatever they hold */

typedef struct {
    const char *name;
    /* `rows` rows of `channels` (3 or 4, of which the fourth is left out) to rows of 3 x c->size bytes; one more
     * byte may be written behind each. */
    void (*across)(
        const coefficients *c, int channels, int rows, const uint8_t *const *sources, uint8_t *const *targets);
    /* Output row `at` from its c->counts[at] source rows, `bytes` bytes each. */
    void (*down)(const coefficients *c, long at, const uint8_t *const *sources, long bytes, uint8_t *target);
    /* `count` pixels to three planes that lie `plane` bytes apart. */
    void (*split)(const uint8_t *pixels, long count, long plane, uint8_t *out);
} passes;

extern const passes generic_passes;

/* `down` for the bytes from `start` on. */
void down_rest(
    const coefficients *c, long at, const uint8_t *const *sources, long start, long bytes, uint8_t *target);

/* `split` for the pixels from `start` on. */
void split_rest(const uint8_t *pixels, long start, long count, long plane, uint8_t *out);

/* The best ones for this machine. */
const passes *find_passes(void);

#endif
