/* What JPEG makes of coefficients: samples, by the exact integer transform; chroma at full size; RGB. The bits are those of
 * libjpeg-turbo's vector code with its defaults, which are Pillow's. */
#ifndef CHIASM_JPEG_PIXELS_H
#define CHIASM_JPEG_PIXELS_H

#include <stdint.h>

/* Coefficients of two blocks, [8 rows, 8 columns] each, to samples; rows lie `stride` bytes apart. Each block has its
 * own steps of quantisation. All are aligned to 16 bytes. */
void jpeg_two_blocks(
    const int16_t *const *blocks, const int16_t *const *quant, uint8_t *const *targets, const long *strides);

/* A block of which only the first coefficient is not 0, dequantised: at most 8191 either way. */
void jpeg_flat_block(int32_t dc, uint8_t *target, long stride);

/* `count` chroma samples to twice as many along a row that lies between two: nearer to `near`. One sample on either side
 * of both is read as well; up to 64 more of each may be read and written. */
void jpeg_widen_between(const uint8_t *near, const uint8_t *far, long count, uint8_t *out);

/* The same along a row of its own. */
void jpeg_widen(const uint8_t *row, long count, uint8_t *out);

/* `count` pixels to RGB; up to 64 bytes may be read behind each row, and none are written behind `out`. */
void jpeg_rgb(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, long count, uint8_t *out);
void jpeg_grey_rgb(const uint8_t *y, long count, uint8_t *out);

#endif
