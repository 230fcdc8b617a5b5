/* The Huffman-coded data of a JPEG scan: bytes without their stuffing, codes, blocks of coefficients. */
#ifndef CHIASM_JPEG_BITS_H
#define CHIASM_JPEG_BITS_H

#include "jpeg_header.h"

#define LOOK_BITS 11
#define BLOCK_ROOM 80 /* numbers of a block: 64, and a place behind them that takes what belongs nowhere */

/* What the next LOOK_BITS bits are: one coefficient or two, each behind some that are 0.
 *   value of the first << 48 | value of the second << 32 | place of the second << 24 | place of the first << 16
 *   | places in all << 8 | bits in all
 * Places count from where the block is at. Where there is no second one, a 0 goes to the place behind the first, and does
 * not count. Otherwise `symbol << 8 | IS_CODE | bits of the code`, with 0 bits for a code longer than LOOK_BITS. */
typedef struct {
    uint64_t entries[1 << LOOK_BITS];
    uint8_t firsts[1 << LOOK_BITS]; /* bits of the first coefficient alone */
    uint32_t ends[18];   /* by length: behind its last code, with 16 bits; the last one is behind everything */
    int32_t offsets[17]; /* by length: the place of its first symbol, minus its first code */
    uint8_t symbols[256];
} code_table;

/* False for lengths that are no code, and symbols that no decoder takes. */
bool jpeg_make_table(const code_lengths *lengths, bool is_dc, code_table *table);

#define BUFFER_BYTES 8192
#define UNIT_BYTES 1536 /* that the six blocks of a unit may take, and some */

/* A piece of the data, between two restart markers, unstuffed bit by bit. */
typedef struct {
    const uint8_t *data;
    size_t size, next; /* what is not unstuffed yet begins at `next` */
    uint64_t bits;     /* the next ones, in front */
    int count;         /* how many of them are good */
    const uint8_t *at; /* in `buffer` */
    const uint8_t *end; /* of what was unstuffed */
    bool has_ended;    /* at a marker, or with the data */
    uint8_t buffer[BUFFER_BYTES + 64];
} bit_reader;

void jpeg_start_reading(bit_reader *r, const uint8_t *data, size_t size, size_t next);

/* False when more was read than there is. */
bool jpeg_unstuff(bit_reader *r);

/* Get the data of a unit ready; behind its end come zeros, for as long as this is true. */
static inline bool jpeg_make_ready(bit_reader *r) { return r->end - r->at >= UNIT_BYTES || jpeg_unstuff(r); }

/* The marker behind the piece, once all of it is used up but for the padding of the last byte; -1 otherwise. */
int jpeg_end_piece(bit_reader *r);

/* Go on behind the marker. */
void jpeg_next_piece(bit_reader *r);

typedef enum { BLOCK_BAD, BLOCK_FLAT, BLOCK_FULL } block_kind;

/* The next block, `last_dc` being that of the one before it. Coefficients go to `block`, which has BLOCK_ROOM numbers, by
 * rows and columns; flat is one whose others are all 0. */
block_kind jpeg_read_block(
    bit_reader *r, const code_table *dc, const code_table *ac, int32_t *last_dc, int16_t *block);

#endif
