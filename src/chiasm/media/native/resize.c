#include "resize.h"

#include "quads.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const picture *from;
    const weights *weights;
    const passes *passes;
    long width, height;
    uint8_t *padded; /* MAX_ROWS rows like the source's, with slack behind them */
    uint8_t *ring;   /* `ring_rows` rows between the passes, and one for what comes out */
    long ring_rows, ring_row_bytes;
    const uint8_t **sources; /* of one vertical step */
    uint32_t *digits;        /* of its weights */
} work;

static bool rows_make(work *w, bool is_down_first) {
    const long row_bytes = w->from->width * w->from->channels;
    const long taps = w->weights->down.size ? w->weights->down.taps : 1;
    w->ring_rows = is_down_first ? MAX_ROWS : taps + MAX_ROWS;
    w->ring_row_bytes = 3 * w->width + SLACK_BYTES;
    w->padded = calloc(MAX_ROWS, (size_t)(row_bytes + SLACK_BYTES));
    w->ring = malloc((size_t)(w->ring_rows + 1) * (size_t)w->ring_row_bytes);
    w->sources = malloc(sizeof *w->sources * (size_t)taps);
    w->digits = malloc(sizeof *w->digits * DIGITS * (size_t)taps);
    return w->padded && w->ring && w->sources && w->digits;
}

static void work_free(work *w) {
    free(w->padded);
    free(w->ring);
    free((void *)w->sources);
    free(w->digits);
}

static uint8_t *ring_row(const work *w, long y) { return w->ring + y % w->ring_rows * w->ring_row_bytes; }

static const uint8_t *source_row(const work *w, long y) {
    return w->from->pixels + y * w->from->width * w->from->channels;
}

static void packed(const uint8_t *source, long pixels, int channels, uint8_t *target) {
    if (channels == 3) {
        memcpy(target, source, (size_t)pixels * 3);
        return;
    }
    for (long i = 0; i < pixels; i++) memcpy(target + 3 * i, source + 4 * i, 3);
}

/* `count` rows of the source in their output width, to `targets`. Both have room for MAX_ROWS. */
static void make_across(const work *w, const uint8_t **rows, int count, uint8_t **targets) {
    if (w->weights->blocks.count) {
        for (int i = count; i < QUAD; i++) { /* the same once more */
            rows[i] = rows[0];
            targets[i] = targets[0];
        }
        w->passes->across_rows(&w->weights->blocks, rows, targets);
    } else if (w->weights->across.size) w->passes->across(&w->weights->across, w->from->channels, count, rows, targets);
    else
        for (int i = 0; i < count; i++) packed(rows[i], w->width, w->from->channels, targets[i]);
}

/* Output row `y` from w->sources, as many as it has weights. */
static void make_down(const work *w, long y, long bytes, uint8_t *target) {
    if (!w->weights->has_digits) {
        w->passes->down(&w->weights->down, y, w->sources, bytes, target);
        return;
    }
    const long quads = digits_of_row(&w->weights->down, y, 0, w->digits);
    for (long tap = w->weights->down.counts[y]; tap < QUAD * quads; tap++) w->sources[tap] = w->sources[0];
    w->passes->down_rows(w->digits, quads, w->sources, bytes, target);
}

int take_rows(const picture *from, uint8_t *padded, long y, const uint8_t **rows) {
    const long bytes = from->width * from->channels, total = bytes * from->height;
    const int count = (int)(from->height - y < MAX_ROWS ? from->height - y : MAX_ROWS);
    if (!from->pixels) {
        uint8_t *targets[MAX_ROWS];
        for (int i = 0; i < count; i++) rows[i] = targets[i] = padded + i * (bytes + SLACK_BYTES);
        from->source(from->state, y, count, targets);
        return count;
    }
    for (int i = 0; i < count; i++) {
        rows[i] = from->pixels + (y + i) * bytes;
        if ((y + i + 1) * bytes + SLACK_BYTES <= total) continue;
        rows[i] = memcpy(padded + i * (bytes + SLACK_BYTES), rows[i], (size_t)bytes);
    }
    return count;
}

/* Fewer source rows than output rows would be made, so each is narrowed once, as it is needed. */
static void across_first(work *w, row_sink sink, void *layout) {
    uint8_t *out = w->ring + w->ring_rows * w->ring_row_bytes;
    long done = w->weights->down.size ? w->weights->down.first[0] : 0;
    for (long y = 0; y < w->height; y++) {
        const long first = w->weights->down.size ? w->weights->down.first[y] : y, count = w->weights->down.size ? w->weights->down.counts[y] : 1;
        while (done < first + count) {
            const uint8_t *rows[MAX_ROWS];
            uint8_t *targets[MAX_ROWS];
            const int taken = take_rows(w->from, w->padded, done, rows);
            for (int i = 0; i < taken; i++) targets[i] = ring_row(w, done + i);
            make_across(w, rows, taken, targets);
            done += taken;
        }
        if (!w->weights->down.size) {
            sink(layout, y, ring_row(w, y));
            continue;
        }
        for (long tap = 0; tap < count; tap++) w->sources[tap] = ring_row(w, first + tap);
        make_down(w, y, 3 * w->width, out);
        sink(layout, y, out);
    }
}

static void down_first(work *w, row_sink sink, void *layout) {
    const long bytes = w->from->width * w->from->channels;
    for (long y = 0; y < w->height; y += MAX_ROWS) {
        const int count = (int)(w->height - y < MAX_ROWS ? w->height - y : MAX_ROWS);
        const uint8_t *rows[MAX_ROWS];
        uint8_t *targets[MAX_ROWS];
        for (int i = 0; i < count; i++) {
            for (long tap = 0; tap < w->weights->down.counts[y + i]; tap++)
                w->sources[tap] = source_row(w, w->weights->down.first[y + i] + tap);
            uint8_t *row = w->padded + i * (bytes + SLACK_BYTES);
            make_down(w, y + i, bytes, row);
            rows[i] = row;
            targets[i] = ring_row(w, y + i);
        }
        make_across(w, rows, count, targets);
        for (int i = 0; i < count; i++) sink(layout, y + i, targets[i]);
    }
}

/* A picture that has its size already. */
static bool keep(work *w, row_sink sink, void *layout) {
    w->padded = malloc((size_t)MAX_ROWS * (size_t)(3 * w->width + SLACK_BYTES));
    for (long y = 0; w->padded && y < w->height; y += MAX_ROWS) {
        const uint8_t *rows[MAX_ROWS];
        const int taken = take_rows(w->from, w->padded, y, rows);
        for (int i = 0; i < taken; i++) sink(layout, y + i, rows[i]);
    }
    return w->padded;
}

static bool resize_rows(work *w, bool is_down_first, row_sink sink, void *layout) {
    if (!rows_make(w, is_down_first)) return false;
    if (is_down_first) down_first(w, sink, layout);
    else across_first(w, sink, layout);
    return true;
}

/* Pillow 13 begins with the pass that makes fewer pixels, by this rule; the rounding between them tells. */
bool is_down_first(const resized_side *across, const resized_side *down) {
    const long lost = down->length - down->size;
    return lost > 0 && lost > 2 * (across->length - across->size);
}

bool resize_part(
    const picture *from, const resized_side *across, const resized_side *down, long width, long height, int filter,
    const passes *p, row_sink sink, void *layout) {
    const weights_key key = {*across, *down, width, height, from->first, from->channels, filter, p};
    weights *taken = weights_take(&key);
    if (!taken) return false;
    work w = {.from = from, .weights = taken, .passes = p, .width = width, .height = height};
    const bool goes_down_first = is_down_first(across, down);
    bool is_made;
    if (!taken->across.size && !taken->down.size && from->channels == 3) is_made = keep(&w, sink, layout);
    else if (!goes_down_first && taken->has_digits && taken->blocks.count)
        is_made = resize_quads(from, taken, sink, layout);
    else is_made = resize_rows(&w, goes_down_first, sink, layout);
    work_free(&w);
    weights_give_back(taken);
    return is_made;
}

bool resize(const picture *from, long width, long height, int filter, const passes *p, row_sink sink, void *layout) {
    const resized_side across = {from->width, width, 0}, down = {from->height, height, 0};
    return resize_part(from, &across, &down, width, height, filter, p, sink, layout);
}
