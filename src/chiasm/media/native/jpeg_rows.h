/* Rows of an everyday JPEG, one after the other, as libjpeg-turbo decodes them, of the columns that are needed: the others
 * are read, and neither transformed nor coloured. The library is the one that Pillow has loaded, so that it is the same
 * pixels; nothing here looks at a byte of the file. */
#ifndef CHIASM_JPEG_ROWS_H
#define CHIASM_JPEG_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct jpeg_rows jpeg_rows;

/* Take the library from a shared object that is linked with it, and stays loaded. False where it cannot be used: another
 * interface, or built without its header. Not thread-safe; before anything else here. */
bool jpeg_rows_library(const char *path);

/* Begin a picture that must be `width` x `height`, of which columns from `first` to `end` are needed. NULL where the file is
 * to be decoded in another way, or has something wrong: more than one scan, arithmetic codes, anything but 8-bit YCbCr. */
jpeg_rows *jpeg_rows_open(const uint8_t *data, size_t bytes, long width, long height, long first, long end);

/* The columns that come, a few more than were asked for. */
long jpeg_rows_first(const jpeg_rows *r);
long jpeg_rows_width(const jpeg_rows *r);

/* Rows from `y` on, RGB; `y` is behind what was read before. Once something is wrong, rows stay as they are. */
void jpeg_rows_read(jpeg_rows *r, long y, int count, uint8_t *const *rows);

/* Read to the end. Whether nothing was wrong with the file: else no row of it is to be used. `seconds` is what decoding took. */
bool jpeg_rows_close(jpeg_rows *r, double *seconds);

#endif
