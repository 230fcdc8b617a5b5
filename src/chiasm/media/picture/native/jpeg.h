/* Everyday JPEGs to RGB, the whole picture or a part of it, with the bits of libjpeg-turbo's exact way. */
#ifndef CHIASM_JPEG_H
#define CHIASM_JPEG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    long left, top, width, height;
} picture_part;

/* OTHER: of another kind, broken, of another size, or not for this machine. Whoever decodes everything has the verdict. */
typedef enum { JPEG_DONE, JPEG_OTHER, JPEG_NO_MEMORY } jpeg_result;

/* Decode a picture that is known to be `width` x `height`; `out` gets the part, [height, width, 3]. All of the data is
 * read and must be in order, also what lies outside of the part. */
jpeg_result jpeg_decode(
    const uint8_t *data, size_t size, long width, long height, const picture_part *part, uint8_t *out);

#endif
