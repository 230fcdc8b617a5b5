#include "blocks.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TABLE_BYTES (8L << 20)
#define CENTER 0x808080u /* half of the base in each digit */

bool have_digits(const coefficients *c) {
    uint32_t all = 0;
    for (long i = 0; i < c->size * c->taps; i++) all |= (uint32_t)c->weights[i] + CENTER;
    return c->size && all >> 8 * DIGITS == 0;
}

/* Of QUAD weights: a byte for each in each digit. */
static void digits_of(const int32_t *weights, uint32_t *digits) {
    uint32_t whole[QUAD];
    for (int tap = 0; tap < QUAD; tap++) whole[tap] = ((uint32_t)weights[tap] + CENTER) ^ CENTER;
    for (int digit = 0; digit < DIGITS; digit++) {
        digits[digit] = 0;
        for (int tap = 0; tap < QUAD; tap++) digits[digit] |= (whole[tap] >> 8 * digit & 255) << 8 * tap;
    }
}

long digits_of_row(const coefficients *c, long at, long lead, uint32_t *digits) {
    const int32_t *weights = c->weights + at * c->taps;
    const long end = lead + c->counts[at], quads = (end + QUAD - 1) / QUAD;
    for (long start = 0; start < QUAD * quads; start += QUAD, digits += DIGITS) {
        int32_t some[QUAD] = {0};
        for (long i = start < lead ? lead : start; i < start + QUAD && i < end; i++) some[i - start] = weights[i - lead];
        digits_of(some, digits);
    }
    return quads;
}

/* The pixel of an output sample; of those that fill up the last block, the last one. */
static long pixel_of(const coefficients *c, long sample) {
    const long pixel = sample / 3;
    return pixel < c->size ? pixel : c->size - 1;
}

static bool fits(const coefficients *c, int channels, long lanes, long window) {
    for (long sample = 0; sample < 3 * c->size; sample += lanes) {
        const long spread = c->first[pixel_of(c, sample + lanes - 1)] - c->first[pixel_of(c, sample)];
        if ((spread + QUAD) * channels > window) return false;
    }
    return true;
}

/* The most samples at once whose source bytes a step can choose. */
static void choose_lanes(blocks *b, const coefficients *c, int channels) {
    static const long lanes[] = {16, 12, 9, 6, 3};
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++)
        for (int wide = 0; wide < 2; wide++) {
            b->lanes = lanes[i];
            b->is_wide = wide;
            if (fits(c, channels, lanes[i], WINDOW << wide)) return;
        }
}

/* The tables of one block. `digits` has room for those of a pixel. */
static void fill(blocks *b, const coefficients *c, int channels, long at, uint32_t *digits) {
    const long sample = at * b->lanes, first = c->first[pixel_of(c, sample)];
    uint32_t *places = b->tables + at * (1 + DIGITS * b->groups) * LANES;
    long used = 0;
    b->offsets[at] = first * channels;
    b->used[at] = 0;
    for (long lane = 0; lane < b->lanes; lane++) {
        const long pixel = pixel_of(c, sample + lane), channel = (sample + lane) % 3;
        if (lane == 0 || channel == 0) used = digits_of_row(c, pixel, 0, digits);
        if (used > b->used[at]) b->used[at] = used;
        const uint32_t place = (uint32_t)((c->first[pixel] - first) * channels + channel);
        for (int tap = 0; tap < QUAD; tap++) places[lane] |= (place + (uint32_t)(tap * channels)) << 8 * tap;
        for (long i = 0; i < DIGITS * used; i++) places[(1 + i) * LANES + lane] = digits[i];
    }
}

bool blocks_make(blocks *b, const coefficients *c, int channels) {
    memset(b, 0, sizeof *b);
    if (!have_digits(c)) return false;
    choose_lanes(b, c, channels);
    b->count = (3 * c->size + b->lanes - 1) / b->lanes;
    b->groups = c->taps / QUAD;
    b->step = QUAD * channels;
    const long numbers = (1 + DIGITS * b->groups) * LANES, most = MAX_TABLE_BYTES / (long)sizeof *b->tables;
    if (b->count > most / numbers) {
        blocks_free(b);
        return false;
    }
    const size_t bytes = sizeof *b->tables * (size_t)(b->count * numbers);
    b->tables = aligned_alloc(WINDOW, bytes);
    b->offsets = malloc(sizeof *b->offsets * (size_t)b->count);
    b->used = malloc(sizeof *b->used * (size_t)b->count);
    uint32_t *digits = malloc(sizeof *digits * DIGITS * (size_t)b->groups);
    const bool is_made = b->tables && b->offsets && b->used && digits;
    if (is_made) memset(b->tables, 0, bytes);
    for (long at = 0; is_made && at < b->count; at++) fill(b, c, channels, at, digits);
    free(digits);
    if (!is_made) blocks_free(b);
    return is_made;
}

void blocks_free(blocks *b) {
    free(b->tables);
    free(b->offsets);
    free(b->used);
    memset(b, 0, sizeof *b);
}
