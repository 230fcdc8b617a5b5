#include "layout.h"

#include <string.h>

void rows_sink(void *layout, long y, const uint8_t *row) {
    const rows_layout *l = layout;
    memcpy(l->out + y * l->width * 3, row, (size_t)l->width * 3);
}

void patches_sink(void *layout, long y, const uint8_t *row) {
    const patches_layout *l = layout;
    const long patch = l->patch, merge = l->merge, patch_row = y / patch, patch_bytes = 3 * l->stride;
    const long square_bytes = merge * merge * patch_bytes;
    uint8_t *square = l->out + patch_row / merge * (l->columns / merge) * square_bytes;
    square += patch_row % merge * merge * patch_bytes + y % patch * patch;
    const long room = (patch - y % patch) * patch; /* rows below are written later */
    for (long column = 0; column < l->columns; column += merge, square += square_bytes)
        for (long inside = 0; inside < merge; inside++, row += 3 * patch)
            l->passes->split(row, patch, l->stride, room, square + inside * patch_bytes);
}

#define BLOCK 32

/* In blocks, so that neither the rows read nor those written leave the cache. */
void turn(const picture *from, int orientation, uint8_t *out) {
    const long width = from->width, height = from->height, channels = from->channels;
    const bool is_lying = orientation >= 5;
    const bool flips_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    const bool flips_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    for (long top = 0; top < height; top += BLOCK)
        for (long left = 0; left < width; left += BLOCK) {
            const long bottom = top + BLOCK < height ? top + BLOCK : height;
            const long right = left + BLOCK < width ? left + BLOCK : width;
            for (long y = top; y < bottom; y++) {
                const uint8_t *source = from->pixels + (y * width + left) * channels;
                const long to_y = flips_y ? height - 1 - y : y;
                for (long x = left; x < right; x++, source += channels) {
                    const long to_x = flips_x ? width - 1 - x : x;
                    memcpy(out + 3 * (is_lying ? to_x * height + to_y : to_y * width + to_x), source, 3);
                }
            }
        }
}
