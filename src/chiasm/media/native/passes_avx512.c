/* Four products of bytes, added, in one instruction, and bytes chosen from anywhere in a register: what processors with
 * AVX-512 have since Ice Lake and Zen 4. */
#if defined(__x86_64__) && defined(__GNUC__)
#ifndef __clang__
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")
#define AVX512
#else
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")))
#endif
#include <immintrin.h>
#include <string.h>

#include "passes.h"

/* For weights that have no digits. */
static void across(
    const coefficients *c, int channels, int rows, const uint8_t *const *sources, uint8_t *const *targets) {
    avx2_passes.across(c, channels, rows, sources, targets);
}

static void down(const coefficients *c, long at, const uint8_t *const *sources, long bytes, uint8_t *target) {
    avx2_passes.down(c, at, sources, bytes, target);
}

AVX512 static inline void clear(__m512i *sums) {
    sums[0] = _mm512_set1_epi32(1 << (PRECISION - 1));
    sums[1] = sums[2] = _mm512_setzero_si512();
}

/* 16 whole numbers from the sums of their digits. */
AVX512 static inline __m512i rounded(const __m512i *sums) {
    const __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(sums[2], 8), sums[1]);
    return _mm512_srai_epi32(_mm512_add_epi32(_mm512_slli_epi32(upper, 8), sums[0]), PRECISION);
}

/* 64 bytes: four of the first, four of the second and so on, then the next four of each. */
AVX512 static inline __m512i packed(const __m512i (*sums)[DIGITS]) {
    const __m512i left = _mm512_packs_epi32(rounded(sums[0]), rounded(sums[1]));
    const __m512i right = _mm512_packs_epi32(rounded(sums[2]), rounded(sums[3]));
    return _mm512_packus_epi16(left, right);
}

/* What is done with the 64 bytes that `packed` gives. */
AVX512 static inline void store_rows(__m512i bytes, long offset, uint8_t *const *targets) {
    const __m512i rows = _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
    _mm_storeu_si128((void *)(targets[0] + offset), _mm512_castsi512_si128(rows));
    _mm_storeu_si128((void *)(targets[1] + offset), _mm512_extracti32x4_epi32(rows, 1));
    _mm_storeu_si128((void *)(targets[2] + offset), _mm512_extracti32x4_epi32(rows, 2));
    _mm_storeu_si128((void *)(targets[3] + offset), _mm512_extracti32x4_epi32(rows, 3));
}

AVX512 static inline void store_quad(__m512i bytes, long offset, uint8_t *target) {
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    _mm512_storeu_si512(target + QUAD * offset, _mm512_shuffle_epi8(bytes, order));
}

/* To one quad, or to four targets. */
AVX512 static inline void across_blocks(
    const blocks *b, bool is_wide, bool is_quad, const uint8_t *const *sources, uint8_t *const *targets) {
    const uint8_t *rows[QUAD] = {sources[0], sources[1], sources[2], sources[3]};
    const uint32_t *table = b->tables;
    for (long at = 0; at < b->count; at++) {
        const __m512i places = _mm512_load_si512(table);
        const uint32_t *weights = table + LANES;
        table += (1 + DIGITS * b->groups) * LANES;
        const long end = b->offsets[at] + b->used[at] * b->step;
        __m512i sums[QUAD][DIGITS];
        for (int row = 0; row < QUAD; row++) clear(sums[row]);
        for (long offset = b->offsets[at]; offset < end; offset += b->step, weights += DIGITS * LANES) {
            for (int row = 0; row < QUAD; row++) {
                const __m512i near = _mm512_loadu_si512(rows[row] + offset);
                const __m512i samples =
                    is_wide ? _mm512_permutex2var_epi8(near, places, _mm512_loadu_si512(rows[row] + offset + WINDOW))
                            : _mm512_permutexvar_epi8(places, near);
                for (int digit = 0; digit < DIGITS; digit++) {
                    const __m512i digits = _mm512_load_si512(weights + digit * LANES);
                    sums[row][digit] = _mm512_dpbusd_epi32(sums[row][digit], samples, digits);
                }
            }
        }
        if (is_quad) store_quad(packed(sums), at * b->lanes, targets[0]);
        else store_rows(packed(sums), at * b->lanes, targets);
    }
}

/* With constants for what is asked in the loop, the compiler makes loops without questions. */
AVX512 static void across_quad(const blocks *b, const uint8_t *const *sources, uint8_t *target) {
    if (b->is_wide) across_blocks(b, true, true, sources, &target);
    else across_blocks(b, false, true, sources, &target);
}

AVX512 static void across_rows(const blocks *b, const uint8_t *const *sources, uint8_t *const *targets) {
    if (b->is_wide) across_blocks(b, true, false, sources, targets);
    else across_blocks(b, false, false, sources, targets);
}

/* 64 samples of each of four rows, next to each other. */
AVX512 static inline void interleave(const __m512i *rows, __m512i *out) {
    const __m512i low[2] = {_mm512_unpacklo_epi8(rows[0], rows[1]), _mm512_unpacklo_epi8(rows[2], rows[3])};
    const __m512i high[2] = {_mm512_unpackhi_epi8(rows[0], rows[1]), _mm512_unpackhi_epi8(rows[2], rows[3])};
    out[0] = _mm512_unpacklo_epi16(low[0], low[1]);
    out[1] = _mm512_unpackhi_epi16(low[0], low[1]);
    out[2] = _mm512_unpacklo_epi16(high[0], high[1]);
    out[3] = _mm512_unpackhi_epi16(high[0], high[1]);
}

AVX512 static void down_rows(
    const uint32_t *digits, long count, const uint8_t *const *sources, long bytes, uint8_t *target) {
    for (long start = 0; start < bytes; start += WINDOW) {
        const __mmask64 mask = bytes - start < WINDOW ? ((__mmask64)1 << (bytes - start)) - 1 : ~(__mmask64)0;
        __m512i sums[4][DIGITS];
        for (int part = 0; part < 4; part++) clear(sums[part]);
        for (long quad = 0; quad < count; quad++) {
            __m512i rows[QUAD], samples[4];
            for (int row = 0; row < QUAD; row++)
                rows[row] = _mm512_maskz_loadu_epi8(mask, sources[QUAD * quad + row] + start);
            interleave(rows, samples);
            for (int part = 0; part < 4; part++)
                for (int digit = 0; digit < DIGITS; digit++) {
                    const __m512i weight = _mm512_set1_epi32((int32_t)digits[DIGITS * quad + digit]);
                    sums[part][digit] = _mm512_dpbusd_epi32(sums[part][digit], samples[part], weight);
                }
        }
        _mm512_storeu_si512(target + start, packed(sums)); /* interleaving and packing keep to the same order */
    }
}

AVX512 static void down_quads(
    const uint32_t *digits, long count, const uint8_t *const *sources, long bytes, uint8_t *target) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (long start = 0; start < bytes; start += 4 * LANES) {
        __m512i sums[4][DIGITS];
        for (int part = 0; part < 4; part++) clear(sums[part]);
        for (long quad = 0; quad < count; quad++) {
            const uint8_t *source = sources[quad] + QUAD * start;
            for (int part = 0; part < 4; part++) {
                const __m512i samples = _mm512_loadu_si512(source + QUAD * LANES * part);
                for (int digit = 0; digit < DIGITS; digit++) {
                    const __m512i weight = _mm512_set1_epi32((int32_t)digits[DIGITS * quad + digit]);
                    sums[part][digit] = _mm512_dpbusd_epi32(sums[part][digit], samples, weight);
                }
            }
        }
        _mm512_storeu_si512(target + start, _mm512_permutexvar_epi32(order, packed(sums)));
    }
}

/* 14 or 16 bytes. */
AVX512 static inline void store(uint8_t *out, __m128i bytes, long count) {
    if (count == 16) _mm_storeu_si128((void *)out, bytes);
    else {
        _mm_storel_epi64((void *)out, bytes);
        _mm_storel_epi64((void *)(out + 6), _mm_srli_si128(bytes, 6));
    }
}

/* As many pixels; 64 bytes are read in any case. */
AVX512 static inline void split_few(const uint8_t *pixels, long count, long plane, uint8_t *out) {
    const __m512i order = _mm512_add_epi8(
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45)),
        _mm512_setr_epi32(
            0, 0, 0, 0, 0x01010101, 0x01010101, 0x01010101, 0x01010101, 0x02020202, 0x02020202, 0x02020202, 0x02020202,
            0, 0, 0, 0));
    const __m512i planes = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(pixels));
    store(out, _mm512_castsi512_si128(planes), count);
    store(out + plane, _mm512_extracti32x4_epi32(planes, 1), count);
    store(out + 2 * plane, _mm512_extracti32x4_epi32(planes, 2), count);
}

AVX512 static void split(const uint8_t *pixels, long count, long plane, long room, uint8_t *out) {
    long at = 0;
    if (count == 14) {
        if (room >= 16) split_few(pixels, 16, plane, out);
        else split_few(pixels, 14, plane, out);
        return;
    }
    for (; at + 16 <= count; at += 16) split_few(pixels + 3 * at, 16, plane, out + at);
    split_rest(pixels, at, count, plane, out);
}

#define FLOAT_BYTES 4
#define FLOATS_AT_ONCE 64

/* The floats of 64 bytes. `parts` [FLOAT_BYTES, 4] are the table's 256 floats, the same byte of each together. */
AVX512 static inline void look_up_some(const uint8_t *bytes, const __m512i *parts, __m512i *floats) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i places = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(bytes));
    const __mmask64 is_upper = _mm512_movepi8_mask(places);
    __m512i found[FLOAT_BYTES];
    for (int i = 0; i < FLOAT_BYTES; i++, parts += 4) {
        const __m512i lower = _mm512_permutex2var_epi8(parts[0], places, parts[1]);
        found[i] = _mm512_mask_blend_epi8(is_upper, lower, _mm512_permutex2var_epi8(parts[2], places, parts[3]));
    }
    const __m512i low[2] = {_mm512_unpacklo_epi8(found[0], found[1]), _mm512_unpackhi_epi8(found[0], found[1])};
    const __m512i high[2] = {_mm512_unpacklo_epi8(found[2], found[3]), _mm512_unpackhi_epi8(found[2], found[3])};
    for (int i = 0; i < 2; i++) {
        floats[2 * i] = _mm512_unpacklo_epi16(low[i], high[i]);
        floats[2 * i + 1] = _mm512_unpackhi_epi16(low[i], high[i]);
    }
}

AVX512 static void look_up_plane(const uint8_t *bytes, const uint8_t *table, long plane, long frames, float *out) {
    __m512i parts[4 * FLOAT_BYTES];
    for (int i = 0; i < 4 * FLOAT_BYTES; i++) parts[i] = _mm512_loadu_si512(table + 64 * i);
    for (long next = 0; next < plane; next += FLOATS_AT_ONCE) {
        /* the last ones are found together with some of those before, and stored in steps of 16 */
        const long at = next + FLOATS_AT_ONCE <= plane ? next : plane - FLOATS_AT_ONCE;
        const int known = (int)((next - at) / 16);
        __m512i floats[4];
        look_up_some(bytes + at, parts, floats);
        for (long frame = 0; frame < frames; frame++)
            for (int i = 0; i < 4; i++)
                if (i >= known) _mm512_storeu_si512(out + frame * plane + at + 16 * i, floats[i]);
    }
}

AVX512 static void look_up_planes(
    const uint8_t *bytes, const float *table, long count, long plane, long frames, float *out) {
    if (plane < FLOATS_AT_ONCE) {
        look_up(bytes, table, count, plane, frames, out);
        return;
    }
    uint8_t parts[3][FLOAT_BYTES][256];
    for (int channel = 0; channel < 3; channel++)
        for (int value = 0; value < 256; value++) {
            uint32_t bits;
            memcpy(&bits, table + 256 * channel + value, sizeof bits);
            for (int i = 0; i < FLOAT_BYTES; i++) parts[channel][i][value] = (uint8_t)(bits >> 8 * i);
        }
    for (long number = 0; number < 3 * count; number++)
        look_up_plane(bytes + number * plane, parts[number % 3][0], plane, frames, out + number * frames * plane);
}

const passes avx512_passes = {
    .name = "avx512", .across = across, .down = down, .split = split, .look_up = look_up_planes,
    .has_digits = true, .across_rows = across_rows, .across_quad = across_quad, .down_rows = down_rows,
    .down_quads = down_quads};
#endif
