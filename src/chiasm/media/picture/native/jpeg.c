#include "jpeg.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include "jpeg_bits.h"
#include "jpeg_pixels.h"

#include <stdlib.h>
#include <string.h>

#define MAX_BLOCKS 6    /* of a unit: 2 x 2 of luma, 2 of chroma */
#define MAX_DC 8191     /* beyond it decoders differ; no encoder writes it */
#define MARGIN 64       /* bytes on either side of a row that may be read or written */
#define MIN_SIDE 8      /* of smaller ones, chroma is made by other rules */
enum { EOI = 0xD9, RST0 = 0xD0 };

/* One component. Rows of two rows of units are kept, as those between units need both. */
typedef struct {
    uint8_t *rows;
    long stride, num_kept;
    long across, down;    /* blocks of a unit */
    long width, height;   /* samples */
    long first;           /* of each row, where units begin that are wanted */
    int16_t quant[64] __attribute__((aligned(16)));
    code_table *dc, *ac;
    int32_t last_dc;
} plane;

typedef struct {
    const picture_part *part;
    uint8_t *out;
    jpeg_header header;
    code_table dc[4], ac[4];
    bit_reader reader;
    plane planes[3];
    long unit_width, unit_height, units_across, units_down;
    long first_column, end_column, first_row, end_row; /* units that are wanted */
    long units_left; /* before the next restart marker */
    int restarts;
    long next_y; /* of the rows that go out */
    uint8_t *wide[2]; /* chroma at full width */
    int16_t blocks[MAX_BLOCKS][BLOCK_ROOM] __attribute__((aligned(16)));
    uint8_t nowhere[64];
} decoder;

static uint8_t *row_of(const plane *p, long y) { return p->rows + y % p->num_kept * p->stride + MARGIN; }

static long up(long length, long unit) { return (length + unit - 1) / unit; }

static bool make_planes(decoder *d) {
    const jpeg_header *h = &d->header;
    for (int i = 0; i < h->num_components; i++) {
        plane *p = &d->planes[i];
        p->across = i ? 1 : h->across;
        p->down = i ? 1 : h->down;
        p->width = up(h->width * p->across, h->across);
        p->height = up(h->height * p->down, h->down);
        p->first = d->first_column * 8 * p->across;
        p->num_kept = 2 * 8 * p->down;
        p->stride = (d->end_column - d->first_column) * 8 * p->across + 2 * MARGIN;
        p->rows = malloc((size_t)(p->num_kept * p->stride));
        for (int k = 0; k < 64; k++) p->quant[k] = (int16_t)h->quant[h->components[i].quant][k];
        p->dc = &d->dc[h->components[i].dc];
        p->ac = &d->ac[h->components[i].ac];
        if (i) d->wide[i - 1] = malloc((size_t)(d->planes[0].stride));
        if (!p->rows || (i && !d->wide[i - 1])) return false;
    }
    return true;
}

static void free_planes(decoder *d) {
    for (int i = 0; i < 3; i++) free(d->planes[i].rows);
    for (int i = 0; i < 2; i++) free(d->wide[i]);
}

/* Which units the part needs: chroma looks one sample beyond its sides. */
static void choose_units(decoder *d) {
    const picture_part *p = d->part;
    d->unit_width = 8L * d->header.across;
    d->unit_height = 8L * d->header.down;
    d->units_across = up(d->header.width, d->unit_width);
    d->units_down = up(d->header.height, d->unit_height);
    d->first_column = (p->left < 2 ? 0 : p->left - 2) / d->unit_width;
    d->end_column = up(p->left + p->width + 2, d->unit_width);
    d->first_row = (p->top < 2 ? 0 : p->top - 2) / d->unit_height;
    d->end_row = up(p->top + p->height + 2, d->unit_height);
    if (d->end_column > d->units_across) d->end_column = d->units_across;
    if (d->end_row > d->units_down) d->end_row = d->units_down;
}

static bool make_tables(decoder *d) {
    const jpeg_header *h = &d->header;
    for (int i = 0; i < h->num_components; i++) {
        const int dc = h->components[i].dc, ac = h->components[i].ac;
        if (!jpeg_make_table(&h->dc[dc], true, &d->dc[dc]) || !jpeg_make_table(&h->ac[ac], false, &d->ac[ac]))
            return false;
    }
    return true;
}

/* The samples of a unit's blocks, two at a time. */
static void make_samples(decoder *d, const block_kind *kinds, uint8_t *const *targets, const int *owners, int count) {
    for (int i = 0; i < count; i += 2) {
        const bool is_pair = i + 1 < count;
        const int other = is_pair ? i + 1 : i;
        if (kinds[i] == BLOCK_FLAT && kinds[other] == BLOCK_FLAT) {
            for (int one = i; one <= other; one++) {
                const plane *p = &d->planes[owners[one]];
                jpeg_flat_block(d->blocks[one][0] * p->quant[0], targets[one], p->stride);
            }
            continue;
        }
        const plane *first = &d->planes[owners[i]], *second = &d->planes[owners[other]];
        const int16_t *blocks[2] = {d->blocks[i], d->blocks[other]}, *quant[2] = {first->quant, second->quant};
        uint8_t *const to[2] = {targets[i], is_pair ? targets[other] : d->nowhere};
        const long strides[2] = {first->stride, is_pair ? second->stride : 8};
        jpeg_two_blocks(blocks, quant, to, strides);
    }
}

static bool read_unit(decoder *d, long column, long row) {
    const bool is_wanted =
        column >= d->first_column && column < d->end_column && row >= d->first_row && row < d->end_row;
    block_kind kinds[MAX_BLOCKS];
    uint8_t *targets[MAX_BLOCKS];
    int owners[MAX_BLOCKS], count = 0;
    if (!jpeg_make_ready(&d->reader)) return false;
    for (int i = 0; i < d->header.num_components; i++) {
        plane *p = &d->planes[i];
        for (long y = 0; y < p->down; y++)
            for (long x = 0; x < p->across; x++, count++) {
                int16_t *block = d->blocks[count];
                kinds[count] = jpeg_read_block(&d->reader, p->dc, p->ac, &p->last_dc, block);
                const int32_t dc = p->last_dc * p->quant[0];
                if (kinds[count] == BLOCK_BAD || dc > MAX_DC || dc < -MAX_DC) return false;
                owners[count] = i;
                if (!is_wanted) continue;
                targets[count] = row_of(p, 8 * (row * p->down + y)) + 8 * (column * p->across + x) - p->first;
            }
    }
    if (is_wanted) make_samples(d, kinds, targets, owners, count);
    return true;
}

static bool restart(decoder *d) {
    if (!d->header.restart_blocks || d->units_left--) return true;
    if (jpeg_end_piece(&d->reader) != RST0 + d->restarts) return false;
    jpeg_next_piece(&d->reader);
    d->restarts = (d->restarts + 1) % 8;
    for (int i = 0; i < 3; i++) d->planes[i].last_dc = 0;
    d->units_left = d->header.restart_blocks - 1;
    return true;
}

/* Beyond the picture's sides chroma goes on as it ends. */
static void extend_chroma(decoder *d, long row) {
    for (int i = 1; i < d->header.num_components; i++) {
        const plane *p = &d->planes[i];
        for (long y = 8 * row; y < 8 * row + 8; y++) {
            uint8_t *samples = row_of(p, y);
            if (!d->first_column) samples[-1] = samples[0];
            if (d->end_column == d->units_across) samples[p->width - p->first] = samples[p->width - 1 - p->first];
        }
    }
}

static const uint8_t *chroma_row(const decoder *d, int component, long y) {
    const plane *p = &d->planes[component];
    const jpeg_header *h = &d->header;
    const long left = d->part->left, skipped = left / h->across - p->first, count = up(d->part->width + left % 2, 2);
    uint8_t *wide = d->wide[component - 1];
    if (h->across == 1) return row_of(p, y) + skipped;
    if (h->down == 1) {
        jpeg_widen(row_of(p, y) + skipped, count, wide);
        return wide + left % 2;
    }
    long other = y / 2 + (y % 2 ? 1 : -1);
    other = other < 0 ? 0 : other >= p->height ? p->height - 1 : other;
    jpeg_widen_between(row_of(p, y / 2) + skipped, row_of(p, other) + skipped, count, wide);
    return wide + left % 2;
}

/* The rows that a row of units completes. */
static void put_rows(decoder *d, long row) {
    const picture_part *part = d->part;
    const bool looks_down = d->header.down == 2 && row + 1 < d->units_down; /* the last row needs the next units */
    long end = (row + 1) * d->unit_height - looks_down;
    if (end > part->top + part->height) end = part->top + part->height;
    for (; d->next_y < end; d->next_y++) {
        const long y = d->next_y;
        const uint8_t *luma = row_of(&d->planes[0], y) + part->left - d->planes[0].first;
        uint8_t *out = d->out + 3 * part->width * (y - part->top);
        if (d->header.num_components == 1) jpeg_grey_rgb(luma, part->width, out);
        else jpeg_rgb(luma, chroma_row(d, 1, y), chroma_row(d, 2, y), part->width, out);
    }
}

static jpeg_result decode(decoder *d, const uint8_t *data, size_t size) {
    if (!make_tables(d)) return JPEG_OTHER;
    choose_units(d);
    if (!make_planes(d)) return JPEG_NO_MEMORY;
    jpeg_start_reading(&d->reader, data, size, d->header.scan);
    d->units_left = d->header.restart_blocks;
    d->next_y = d->part->top;
    for (long row = 0; row < d->units_down; row++) {
        for (long column = 0; column < d->units_across; column++)
            if (!restart(d) || !read_unit(d, column, row)) return JPEG_OTHER;
        if (row < d->first_row || row >= d->end_row) continue;
        if (d->header.across == 2) extend_chroma(d, row);
        put_rows(d, row);
    }
    return jpeg_end_piece(&d->reader) == EOI ? JPEG_DONE : JPEG_OTHER;
}

static bool is_inside(const picture_part *p, const jpeg_header *h) {
    return p->left >= 0 && p->top >= 0 && p->width > 0 && p->height > 0 && p->width <= h->width - p->left &&
           p->height <= h->height - p->top;
}

jpeg_result jpeg_decode(
    const uint8_t *data, size_t size, long width, long height, const picture_part *part, uint8_t *out) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi2")) return JPEG_OTHER;
    decoder *d = aligned_alloc(64, up(sizeof *d, 64) * 64);
    if (!d) return JPEG_NO_MEMORY;
    memset(d->planes, 0, sizeof d->planes);
    memset(d->wide, 0, sizeof d->wide);
    d->restarts = 0;
    d->part = part;
    d->out = out;
    jpeg_result result = JPEG_OTHER;
    const bool is_read = jpeg_read_header(data, size, &d->header) && d->header.width == width;
    if (is_read && d->header.height == height && width >= MIN_SIDE && is_inside(part, &d->header))
        result = decode(d, data, size);
    free_planes(d);
    free(d);
    return result;
}
#else
jpeg_result jpeg_decode(
    const uint8_t *data, size_t size, long width, long height, const picture_part *part, uint8_t *out) {
    (void)data, (void)size, (void)width, (void)height, (void)part, (void)out;
    return JPEG_OTHER;
}
#endif
