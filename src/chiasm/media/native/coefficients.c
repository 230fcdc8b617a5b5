#include "coefficients.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

static double sinc(double x) { return x == 0 ? 1 : sin(x * PI) / (x * PI); }

static double support_of(int filter) { return filter == LANCZOS ? 3 : filter == BICUBIC ? 2 : 1; }

/* The order of the operations decides the last bit. */
static double weight_of(int filter, double x) {
    if (filter == LANCZOS) return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
    if (x < 0) x = -x;
    if (filter == BILINEAR) return x < 1 ? 1 - x : 0;
    const double a = -0.5;
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static int32_t fixed(double weight) {
    const double scaled = weight * (1 << PRECISION);
    return (int32_t)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
}

static void split(coefficients *c, long at) {
    const int32_t *weights = c->weights + at * c->taps;
    int16_t *halves = c->halves + at * c->taps * 2;
    for (long tap = 0; tap < c->taps; tap++) {
        int16_t *group = halves + tap / GROUP * 2 * GROUP;
        group[tap % GROUP] = (int16_t)(weights[tap] >> LOW_BITS);
        group[GROUP + tap % GROUP] = (int16_t)(weights[tap] & ((1 << LOW_BITS) - 1));
    }
}

/* The source pixels that output pixel `at` is made of, and their middle. */
typedef struct {
    double center;
    long first, end;
} window;

static window window_of(int filter, long from, long to, long at) {
    const double scale = (double)from / (double)to, support = support_of(filter) * (scale < 1 ? 1 : scale);
    const double center = (at + 0.5) * scale;
    const long first = (long)(center - support + 0.5), end = (long)(center + support + 0.5);
    return (window){center, first < 0 ? 0 : first, end > from ? from : end};
}

static void fill(coefficients *c, int filter, long from, double *row) {
    const double scale = (double)from / (double)c->size, narrow = 1 / (scale < 1 ? 1 : scale);
    for (long at = 0; at < c->size; at++) {
        const window w = window_of(filter, from, c->size, at);
        double sum = 0;
        for (long tap = 0; tap < w.end - w.first; tap++) {
            row[tap] = weight_of(filter, (tap + w.first - w.center + 0.5) * narrow);
            sum += row[tap];
        }
        c->first[at] = (int32_t)w.first;
        c->counts[at] = (int32_t)(w.end - w.first);
        for (long tap = 0; tap < w.end - w.first; tap++)
            c->weights[at * c->taps + tap] = fixed(sum != 0 ? row[tap] / sum : row[tap]);
    }
}

void coefficients_span(int filter, long from, long to, long at, long count, long *first, long *end) {
    *first = window_of(filter, from, to, at).first;
    *end = window_of(filter, from, to, at + count - 1).end;
}

bool coefficients_make(coefficients *c, int filter, long from, long to) {
    const double scale = (double)from / (double)to;
    const long most = (long)ceil(support_of(filter) * (scale < 1 ? 1 : scale)) * 2 + 1;
    c->size = to;
    c->taps = (most + GROUP - 1) / GROUP * GROUP;
    c->first = malloc(sizeof *c->first * (size_t)to);
    c->counts = malloc(sizeof *c->counts * (size_t)to);
    c->weights = calloc((size_t)to * (size_t)c->taps, sizeof *c->weights);
    double *row = malloc(sizeof *row * (size_t)c->taps);
    const bool is_made = c->first && c->counts && c->weights && row;
    if (is_made) fill(c, filter, from, row);
    else coefficients_free(c);
    free(row);
    return is_made;
}

/* So many bytes from `at` on, at the beginning of the same memory, of which the rest is given back. */
static void *cut_out(void *memory, size_t at, size_t bytes) {
    memmove(memory, (char *)memory + at, bytes);
    void *less = realloc(memory, bytes);
    return less ? less : memory;
}

void coefficients_keep(coefficients *c, long at, long count) {
    const size_t from = (size_t)at, kept = (size_t)count, row = (size_t)c->taps * sizeof *c->weights;
    c->size = count;
    c->counts = cut_out(c->counts, from * sizeof *c->counts, kept * sizeof *c->counts);
    c->weights = cut_out(c->weights, from * row, kept * row);
    c->first = cut_out(c->first, from * sizeof *c->first, kept * sizeof *c->first);
}

bool coefficients_halve(coefficients *c) {
    c->halves = malloc(sizeof *c->halves * 2 * (size_t)c->size * (size_t)c->taps);
    for (long at = 0; c->halves && at < c->size; at++) split(c, at);
    return c->halves;
}

void coefficients_free(coefficients *c) {
    free(c->first);
    free(c->counts);
    free(c->weights);
    free(c->halves);
    memset(c, 0, sizeof *c);
}
