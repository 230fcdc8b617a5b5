/* Undoing the filters of PNG rows. */
#ifndef CHIASM_UNFILTER_H
#define CHIASM_UNFILTER_H

#include <stdbool.h>
#include <stdint.h>

/* `rows` of 1 + width x channels bytes, the first of which names the filter, to RGB. With 4 channels the last one must
 * be 255 throughout.
 *
 * Returns NULL, or what is wrong. `scratch` holds two rows of width x channels bytes. */
const char *unfilter(const uint8_t *rows, long width, long height, int channels, uint8_t *scratch, uint8_t *out);

#endif
