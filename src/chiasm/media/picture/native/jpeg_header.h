/* What stands before the pixels of an everyday JPEG: one scan, 8 bits, Huffman codes, grey or YCbCr. */
#ifndef CHIASM_JPEG_HEADER_H
#define CHIASM_JPEG_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint8_t counts[17]; /* codes of each length, from 1 */
    uint8_t symbols[256];
    bool is_set;
} code_lengths;

typedef struct {
    long width, height;
    int num_components;  /* 1 or 3 */
    int across, down;    /* luma samples per chroma sample along each side: 1 1, 2 1 or 2 2 */
    long restart_blocks; /* units between restart markers; 0 without */
    size_t scan;         /* where the coded data begins */
    uint16_t quant[4][64]; /* by rows and columns; 0 first where not set */
    code_lengths dc[4], ac[4];
    struct {
        uint8_t id, quant, dc, ac;
    } components[3];
} jpeg_header;

/* The row and column, as 8 x row + column, of each coefficient in the order of the data. */
extern const uint8_t jpeg_zigzag[64];

/* False for every other kind of JPEG, and for whatever is not in order. */
bool jpeg_read_header(const uint8_t *data, size_t size, jpeg_header *header);

#endif
