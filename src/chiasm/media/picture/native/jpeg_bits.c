#include "jpeg_bits.h"

#if defined(__x86_64__) && defined(__GNUC__)
#ifndef __clang__
#pragma GCC target("avx2,bmi2")
#define AVX2
#else
#define AVX2 __attribute__((target("avx2,bmi2")))
#endif
#include <immintrin.h>
#include <string.h>

#define IS_CODE 0x80
#define END_OF_BLOCK 128 /* steps over all that may be left */
#define NOWHERE 64

static uint8_t places[512]; /* of the coefficient that comes k-th; those behind the block are nowhere */

__attribute__((constructor)) static void make_places(void) {
    memset(places, NOWHERE, sizeof places);
    memcpy(places, jpeg_zigzag, sizeof jpeg_zigzag);
}

/* `size` bits as the number that they stand for. */
static inline int32_t number_of(uint32_t bits, int size) {
    return size && bits < 1u << (size - 1) ? (int32_t)bits - (1 << size) + 1 : (int32_t)bits;
}

static int steps_of(int symbol) { return symbol & 15 || symbol == 0xF0 ? symbol >> 4 : END_OF_BLOCK; }

static uint64_t entry_of_one(int32_t value, int steps, int length) {
    const uint64_t places_in_all = (uint64_t)steps + 1;
    return (uint64_t)(uint16_t)value << 48 | places_in_all << 24 | (uint64_t)steps << 16 | places_in_all << 8 |
           (uint64_t)length;
}

/* The entry for these LOOK_BITS bits, which begin with a code of `length` bits. */
static uint64_t entry_of(uint32_t bits, int symbol, int length, bool is_dc) {
    const int size = symbol & 15;
    if (length + size > LOOK_BITS) return (uint64_t)(symbol << 8 | IS_CODE | length);
    const uint32_t behind = bits >> (LOOK_BITS - length - size) & ((1u << size) - 1);
    return entry_of_one(number_of(behind, size), is_dc ? 0 : steps_of(symbol), length + size);
}

#define BITS_OF(entry) ((int)((entry)&63))
#define PLACES_OF(entry) ((int)((entry) >> 8 & 255))

/* Both entries as one, where they fit into one; else the first. */
static uint64_t entry_of_two(uint64_t one, uint64_t two) {
    const int bits = BITS_OF(one) + BITS_OF(two), done = PLACES_OF(one);
    if (done > END_OF_BLOCK || two & IS_CODE || bits > LOOK_BITS) return one;
    const uint64_t place = (uint64_t)done + (two >> 16 & 255), all = (uint64_t)(done + PLACES_OF(two));
    return (one >> 48 << 48) | two >> 48 << 32 | place << 24 | (one & 255 << 16) | all << 8 | (uint64_t)bits;
}

static void pair_up(code_table *t) {
    uint64_t ones[1 << LOOK_BITS];
    memcpy(ones, t->entries, sizeof ones);
    for (uint32_t bits = 0; bits < 1 << LOOK_BITS; bits++) {
        t->firsts[bits] = (uint8_t)BITS_OF(ones[bits]);
        if (ones[bits] & IS_CODE) continue;
        t->entries[bits] = entry_of_two(ones[bits], ones[bits << BITS_OF(ones[bits]) & ((1 << LOOK_BITS) - 1)]);
    }
}

bool jpeg_make_table(const code_lengths *lengths, bool is_dc, code_table *t) {
    for (int i = 0; i < 1 << LOOK_BITS; i++) t->entries[i] = IS_CODE;
    memcpy(t->symbols, lengths->symbols, sizeof t->symbols);
    uint32_t code = 0;
    int32_t place = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        t->offsets[length] = place - (int32_t)code;
        for (int i = 0; i < lengths->counts[length]; i++, code++, place++) {
            if (code >= 1u << length || (is_dc && t->symbols[place] > 15)) return false;
            if (length > LOOK_BITS) continue;
            const uint32_t first = code << (LOOK_BITS - length);
            for (uint32_t bits = first; bits < first + (1u << (LOOK_BITS - length)); bits++)
                t->entries[bits] = entry_of(bits, t->symbols[place], length, is_dc);
        }
        t->ends[length] = code << (16 - length);
    }
    t->ends[17] = UINT32_MAX;
    if (!is_dc) pair_up(t);
    return true;
}

void jpeg_start_reading(bit_reader *r, const uint8_t *data, size_t size, size_t next) {
    r->data = data;
    r->size = size;
    r->next = next;
    r->bits = 0;
    r->count = 0;
    r->at = r->end = r->buffer;
    r->has_ended = false;
}

/* Copy up to `room` bytes; a byte of 255 comes with a zero behind it, or is a marker's. */
AVX2 static uint8_t *copy_unstuffed(bit_reader *r, uint8_t *out, const uint8_t *limit) {
    while (out < limit) {
        if (limit - out >= 32 && r->size - r->next >= 32) {
            const __m256i bytes = _mm256_loadu_si256((const void *)(r->data + r->next));
            _mm256_storeu_si256((void *)out, bytes);
            const uint32_t found = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(-1)));
            const int plain = found ? __builtin_ctz(found) : 32;
            out += plain;
            r->next += (size_t)plain;
            if (!found) continue;
        }
        if (r->next >= r->size) break;
        if (r->data[r->next] != 0xFF) {
            *out++ = r->data[r->next++];
            continue;
        }
        if (r->next + 1 >= r->size || r->data[r->next + 1]) break;
        *out++ = 0xFF;
        r->next += 2;
    }
    r->has_ended = out < limit;
    return out;
}

bool jpeg_unstuff(bit_reader *r) {
    if (r->has_ended) return r->at <= r->end + 8; /* so far `refill` may be ahead; zeros for one more unit are there */
    const size_t left = (size_t)(r->end - r->at);
    memmove(r->buffer, r->at, left);
    uint8_t *end = copy_unstuffed(r, r->buffer + left, r->buffer + BUFFER_BYTES - 2 * UNIT_BYTES);
    r->at = r->buffer;
    r->end = end;
    if (r->has_ended) memset(end, 0, (size_t)(r->buffer + sizeof r->buffer - end));
    return true;
}

int jpeg_end_piece(bit_reader *r) {
    jpeg_unstuff(r);
    const long left = 8 * (long)(r->end - r->at) + r->count; /* bits; some are in both, see `refill` */
    if (!r->has_ended || left < 0 || left >= 8 || r->next + 1 >= r->size) return -1;
    return r->data[r->next + 1];
}

void jpeg_next_piece(bit_reader *r) { jpeg_start_reading(r, r->data, r->size, r->next + 2); }

/* At least 56 bits. Those that are in place already are read once more, and are the same. */
#define REFILL                                              \
    do {                                                    \
        uint64_t more;                                      \
        memcpy(&more, at, 8);                               \
        bits |= __builtin_bswap64(more) >> count;           \
        at += (63 - count) >> 3;                            \
        count |= 56;                                        \
    } while (0)

/* A code that the table does not finish; its entry, or 0 for no code. Takes the bits itself, so none are in the entry. */
static inline uint64_t long_entry(const code_table *t, uint64_t entry, uint64_t *bits, int *count, bool is_dc) {
    int symbol = (int)(entry >> 8 & 255), length = (int)(entry & 0x7F);
    if (!length) {
        const uint32_t front = (uint32_t)(*bits >> 48);
        for (length = LOOK_BITS + 1; front >= t->ends[length]; length++) {}
        if (length > 16) return 0;
        symbol = t->symbols[(t->offsets[length] + (int32_t)(front >> (16 - length))) & 255];
    }
    *bits <<= length;
    const int size = symbol & 15;
    const uint32_t behind = size ? (uint32_t)(*bits >> (64 - size)) : 0;
    *bits <<= size;
    *count -= length + size;
    return entry_of_one(number_of(behind, size), is_dc ? 0 : steps_of(symbol), 0);
}

#define LOOK(table) ((table)->entries[bits >> (64 - LOOK_BITS)])

/* How a block ended whose last entry began at place `k`; -1 when it went beyond its end. `spare` are bits of the entry that
 * belong to the next block. */
static inline int ending(const code_table *ac, uint64_t entry, uint64_t bits_before, int k, int *spare) {
    const int first = k + (int)(entry >> 16 & 255) + 1, last = k + PLACES_OF(entry);
    *spare = 0;
    if (first == 64) {
        if (BITS_OF(entry)) *spare = BITS_OF(entry) - ac->firsts[bits_before >> (64 - LOOK_BITS)];
        return BLOCK_FULL;
    }
    if (first > 64 && first <= END_OF_BLOCK) return BLOCK_BAD;
    if (last > 64 && last <= END_OF_BLOCK) return BLOCK_BAD;
    return first == END_OF_BLOCK + 2 ? BLOCK_FLAT : BLOCK_FULL;
}

AVX2 block_kind jpeg_read_block(
    bit_reader *r, const code_table *dc, const code_table *ac, int32_t *last_dc, int16_t *block) {
    uint64_t bits = r->bits, before;
    int count = r->count, k = 1, spare;
    const uint8_t *at = r->at;
    for (int i = 0; i < 4; i++) _mm256_storeu_si256((__m256i *)block + i, _mm256_setzero_si256());
    REFILL;
    uint64_t entry = LOOK(dc);
    if (entry & IS_CODE && !(entry = long_entry(dc, entry, &bits, &count, true))) return BLOCK_BAD;
    bits <<= BITS_OF(entry);
    count -= BITS_OF(entry);
    *last_dc += (int16_t)(entry >> 48);
    block[0] = (int16_t)*last_dc;
#define PUT                                                              \
    before = bits;                                                       \
    bits <<= BITS_OF(entry);                                             \
    count -= BITS_OF(entry);                                             \
    block[places[k + (int)(entry >> 16 & 255)]] = (int16_t)(entry >> 48); \
    block[places[k + (int)(entry >> 24 & 255)]] = (int16_t)(entry >> 32); \
    if (__builtin_expect(k + PLACES_OF(entry) >= 64, 0)) break;          \
    k += PLACES_OF(entry);
    for (;;) {
        REFILL;
        entry = LOOK(ac);
        if (__builtin_expect(entry & IS_CODE, 0) && !(entry = long_entry(ac, entry, &bits, &count, false)))
            return BLOCK_BAD;
        PUT
        entry = LOOK(ac);
        if (__builtin_expect(entry & IS_CODE, 0)) continue;
        PUT
        entry = LOOK(ac);
        if (__builtin_expect(entry & IS_CODE, 0)) continue;
        PUT
        entry = LOOK(ac);
        if (__builtin_expect(entry & IS_CODE, 0)) continue;
        PUT
    }
#undef PUT
    const int kind = ending(ac, entry, before, k, &spare);
    r->bits = spare ? before << (BITS_OF(entry) - spare) : bits;
    r->count = count + spare;
    r->at = at;
    return (block_kind)kind;
}
#endif
