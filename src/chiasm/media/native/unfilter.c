#include "unfilter.h"

#include <stdlib.h>
#include <string.h>

enum { NONE, SUB, UP, AVERAGE, PAETH };

static inline int nearest(int left, int above, int corner) {
    const int by_left = abs(above - corner), by_above = abs(left - corner), by_corner = abs(left + above - 2 * corner);
    if (by_left <= by_above && by_left <= by_corner) return left;
    return by_above <= by_corner ? above : corner;
}

/* One pixel's bytes depend on those of the pixel before, so each channel is a chain of its own; inlined with constants
 * the chains run side by side in registers. */
static inline void row_of(
    int filter, const uint8_t *restrict row, const uint8_t *restrict before, long pixels, const int channels,
    uint8_t *restrict out) {
    int left[4] = {0}, corner[4] = {0};
    for (long at = 0; at < pixels; at++, row += channels, before += channels, out += channels)
        for (int i = 0; i < channels; i++) {
            const int above = before[i];
            int guess = left[i];
            if (filter == AVERAGE) guess = (left[i] + above) >> 1;
            if (filter == PAETH) guess = nearest(left[i], above, corner[i]);
            corner[i] = above;
            out[i] = (uint8_t)(left[i] = (row[i] + guess) & 255);
        }
}

static bool one_row(
    int filter, const uint8_t *row, const uint8_t *before, long width, int channels, uint8_t *restrict out) {
    const long bytes = width * channels;
    switch (filter) {
        case NONE: memcpy(out, row, (size_t)bytes); return true;
        case UP:
            for (long i = 0; i < bytes; i++) out[i] = (uint8_t)(row[i] + before[i]);
            return true;
        case SUB: channels == 3 ? row_of(SUB, row, before, width, 3, out) : row_of(SUB, row, before, width, 4, out); return true;
        case AVERAGE:
            channels == 3 ? row_of(AVERAGE, row, before, width, 3, out) : row_of(AVERAGE, row, before, width, 4, out);
            return true;
        case PAETH:
            channels == 3 ? row_of(PAETH, row, before, width, 3, out) : row_of(PAETH, row, before, width, 4, out);
            return true;
        default: return false;
    }
}

static bool drop_alpha(const uint8_t *row, long width, uint8_t *out) {
    unsigned all = 255;
    for (long i = 0; i < width; i++) all &= row[4 * i + 3];
    for (long i = 0; i < width; i++)
        for (int channel = 0; channel < 3; channel++) out[3 * i + channel] = row[4 * i + channel];
    return all == 255;
}

const char *unfilter(const uint8_t *rows, long width, long height, int channels, uint8_t *scratch, uint8_t *out) {
    const long bytes = width * channels;
    memset(scratch, 0, (size_t)bytes);
    const uint8_t *before = scratch;
    for (long y = 0; y < height; y++, rows += 1 + bytes) {
        uint8_t *target = channels == 3 ? out + y * bytes : scratch + (y % 2 ? 0 : bytes);
        if (!one_row(rows[0], rows + 1, before, width, channels, target)) return "an unknown filter";
        if (channels == 4 && !drop_alpha(target, width, out + y * width * 3)) return "transparent pixels";
        before = target;
    }
    return NULL;
}
