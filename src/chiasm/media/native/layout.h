/* Where pixels go: rows of a picture, patches of a vision tower, planes of floats. */
#ifndef CHIASM_LAYOUT_H
#define CHIASM_LAYOUT_H

#include "resize.h"

typedef struct {
    uint8_t *out; /* [height, width, 3] */
    long width;
} rows_layout;

void rows_sink(void *layout, long y, const uint8_t *row);

typedef struct {
    uint8_t *out; /* [patches, 3, stride], of which patch x patch samples are written; patches of a square together */
    long columns, patch, merge;
    long stride;
    const passes *passes;
} patches_layout;

/* Up to SLACK_BYTES are read behind a row. */
void patches_sink(void *layout, long y, const uint8_t *row);

/* A picture turned as EXIF orientation 2 .. 8 asks; `out` is [height, width, 3] after turning. */
void turn(const picture *from, int orientation, uint8_t *out);

#endif
