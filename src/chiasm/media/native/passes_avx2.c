/* Weights have more than 16 bits, the multiplier for pairs of 16-bit numbers takes no more: each weight is two halves,
 * and the sum of the upper ones, shifted, plus the sum of the lower ones is the whole sum to the bit. */
#if defined(__x86_64__) && defined(__GNUC__)
#ifndef __clang__
#pragma GCC target("avx2")
#define AVX2
#else
#define AVX2 __attribute__((target("avx2")))
#endif
#include <immintrin.h>
#include <string.h>

#include "passes.h"

/* Two pixels' samples of one channel next to each other, as 16-bit numbers: pixels 0 and 1 in the lower half of the
 * register, 2 and 3 in the upper one. */
#define PAIRS(p, q, r)                                                                                              \
    _mm256_setr_epi8(                                                                                               \
        0, -1, p, -1, 1, -1, p + 1, -1, 2, -1, p + 2, -1, -1, -1, -1, -1, q, -1, r, -1, q + 1, -1, r + 1, -1, q + 2, \
        -1, r + 2, -1, -1, -1, -1, -1)

AVX2 static inline void store_pixel(uint8_t *target, __m256i high, __m256i low) {
    const __m256i both = _mm256_add_epi32(_mm256_slli_epi32(high, LOW_BITS), low);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    sum = _mm_srai_epi32(_mm_add_epi32(sum, _mm_set1_epi32(1 << (PRECISION - 1))), PRECISION);
    sum = _mm_packus_epi16(_mm_packs_epi32(sum, sum), sum);
    const uint32_t pixel = (uint32_t)_mm_cvtsi128_si32(sum);
    target[0] = (uint8_t)pixel;
    target[1] = (uint8_t)(pixel >> 8);
    target[2] = (uint8_t)(pixel >> 16);
}

AVX2 static inline __m256i whole(__m256i high, __m256i low) {
    return _mm256_add_epi32(_mm256_slli_epi32(high, LOW_BITS), low);
}

/* Two rows' sums, each the sum of both halves of its register, rounded, in one. */
AVX2 static inline __m256i rounded(__m256i one, __m256i other) {
    const __m256i sum =
        _mm256_add_epi32(_mm256_permute2x128_si256(one, other, 0x20), _mm256_permute2x128_si256(one, other, 0x31));
    return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << (PRECISION - 1))), PRECISION);
}

/* One pixel of each of four rows. A fourth byte is written behind each: the next pixel's place, or slack. */
AVX2 static inline void store_pixels(uint8_t *const *targets, long offset, const __m256i *high, const __m256i *low) {
    const __m256i first = rounded(whole(high[0], low[0]), whole(high[1], low[1]));
    const __m256i second = rounded(whole(high[2], low[2]), whole(high[3], low[3]));
    const __m256i words = _mm256_packs_epi32(first, second);
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const __m128i even = _mm256_castsi256_si128(bytes), odd = _mm256_extracti128_si256(bytes, 1);
    const int32_t pixels[4] = {
        _mm_cvtsi128_si32(even), _mm_cvtsi128_si32(odd), _mm_extract_epi32(even, 1), _mm_extract_epi32(odd, 1)};
    for (int row = 0; row < 4; row++) memcpy(targets[row] + offset, &pixels[row], 4);
}

AVX2 static inline void across_rows(
    const coefficients *c, int channels, int rows, const uint8_t *const *sources, uint8_t *const *targets) {
    const __m256i pairs = channels == 3 ? PAIRS(3, 6, 9) : PAIRS(4, 8, 12);
    const __m256i spread = _mm256_setr_epi8(
        0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, -1, -1, -1, -1, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, -1, -1, -1, -1);
    for (long at = 0; at < c->size; at++) {
        const int16_t *halves = c->halves + at * c->taps * 2;
        const long offset = (long)c->first[at] * channels, used = (c->counts[at] + GROUP - 1) / GROUP;
        __m256i high[MAX_ROWS], low[MAX_ROWS];
        for (int row = 0; row < rows; row++) high[row] = low[row] = _mm256_setzero_si256();
        for (long group = 0; group < used; group++, halves += 2 * GROUP) {
            const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)halves));
            const __m256i upper = _mm256_shuffle_epi8(both, spread);
            const __m256i lower = _mm256_shuffle_epi8(_mm256_srli_si256(both, 2 * GROUP), spread);
            for (int row = 0; row < rows; row++) {
                const void *source = sources[row] + offset + group * GROUP * channels;
                const __m256i pixels =
                    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(source)), pairs);
                high[row] = _mm256_add_epi32(high[row], _mm256_madd_epi16(pixels, upper));
                low[row] = _mm256_add_epi32(low[row], _mm256_madd_epi16(pixels, lower));
            }
        }
        if (rows == MAX_ROWS) store_pixels(targets, 3 * at, high, low);
        else
            for (int row = 0; row < rows; row++) store_pixel(targets[row] + 3 * at, high[row], low[row]);
    }
}

/* With constants for channels and rows, the compiler keeps all sums in registers. */
AVX2 static void across(
    const coefficients *c, int channels, int rows, const uint8_t *const *sources, uint8_t *const *targets) {
    if (rows == MAX_ROWS && channels == 3) across_rows(c, 3, MAX_ROWS, sources, targets);
    else if (rows == MAX_ROWS) across_rows(c, 4, MAX_ROWS, sources, targets);
    else
        for (int row = 0; row < rows; row++)
            if (channels == 3) across_rows(c, 3, 1, sources + row, targets + row);
            else across_rows(c, 4, 1, sources + row, targets + row);
}

#define STEP 32

AVX2 static inline __m256i packed(const __m256i *high, const __m256i *low) {
    const __m256i half = _mm256_set1_epi32(1 << (PRECISION - 1));
    __m256i sums[4];
    for (int i = 0; i < 4; i++) {
        sums[i] = _mm256_add_epi32(_mm256_slli_epi32(high[i], LOW_BITS), low[i]);
        sums[i] = _mm256_srai_epi32(_mm256_add_epi32(sums[i], half), PRECISION);
    }
    return _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]));
}

AVX2 static void down(const coefficients *c, long at, const uint8_t *const *sources, long bytes, uint8_t *target) {
    const long count = c->counts[at];
    const int32_t *weights = c->weights + at * c->taps;
    const __m256i zero = _mm256_setzero_si256();
    long start = 0;
    for (; start + STEP <= bytes; start += STEP) {
        __m256i high[4] = {zero, zero, zero, zero}, low[4] = {zero, zero, zero, zero};
        for (long tap = 0; tap < count; tap += 2) {
            const bool is_pair = tap + 1 < count;
            const int32_t one = weights[tap], two = is_pair ? weights[tap + 1] : 0;
            const int32_t mask = (1 << LOW_BITS) - 1;
            const __m256i upper = _mm256_set1_epi32(
                (int32_t)((uint32_t)(uint16_t)(one >> LOW_BITS) | (uint32_t)(two >> LOW_BITS) << 16));
            const __m256i lower = _mm256_set1_epi32((one & mask) | (two & mask) << 16);
            const __m256i a = _mm256_loadu_si256((const void *)(sources[tap] + start));
            const __m256i b = is_pair ? _mm256_loadu_si256((const void *)(sources[tap + 1] + start)) : zero;
            const __m256i left = _mm256_unpacklo_epi8(a, b), right = _mm256_unpackhi_epi8(a, b);
            const __m256i samples[4] = {
                _mm256_unpacklo_epi8(left, zero), _mm256_unpackhi_epi8(left, zero), _mm256_unpacklo_epi8(right, zero),
                _mm256_unpackhi_epi8(right, zero)};
            for (int i = 0; i < 4; i++) {
                high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(samples[i], upper));
                low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(samples[i], lower));
            }
        }
        _mm256_storeu_si256((void *)(target + start), packed(high, low));
    }
    down_rest(c, at, sources, start, bytes, target);
}

#define NO4 -1, -1, -1, -1
#define NO5 NO4, -1
#define NO6 NO5, -1
#define NO10 NO6, NO4
#define NO11 NO6, NO5

AVX2 static inline __m128i gathered(const __m128i *from, __m128i first, __m128i second, __m128i third) {
    return _mm_or_si128(
        _mm_or_si128(_mm_shuffle_epi8(from[0], first), _mm_shuffle_epi8(from[1], second)),
        _mm_shuffle_epi8(from[2], third));
}

/* 16 pixels, of which `count` are stored; that many are read in any case. */
AVX2 static inline void split_sixteen(const uint8_t *pixels, size_t count, long plane, uint8_t *out) {
    __m128i from[3];
    for (int i = 0; i < 3; i++) from[i] = _mm_loadu_si128((const void *)(pixels + 16 * i));
    const __m128i planes[3] = {
        gathered(
            from, _mm_setr_epi8(0, 3, 6, 9, 12, 15, NO10), _mm_setr_epi8(NO6, 2, 5, 8, 11, 14, NO5),
            _mm_setr_epi8(NO11, 1, 4, 7, 10, 13)),
        gathered(
            from, _mm_setr_epi8(1, 4, 7, 10, 13, NO11), _mm_setr_epi8(NO5, 0, 3, 6, 9, 12, 15, NO5),
            _mm_setr_epi8(NO11, 2, 5, 8, 11, 14)),
        gathered(
            from, _mm_setr_epi8(2, 5, 8, 11, 14, NO11), _mm_setr_epi8(NO5, 1, 4, 7, 10, 13, NO6),
            _mm_setr_epi8(NO10, 0, 3, 6, 9, 12, 15))};
    for (int channel = 0; channel < 3; channel++) memcpy(out + channel * plane, &planes[channel], count);
}

AVX2 static void split(const uint8_t *pixels, long count, long plane, long room, uint8_t *out) {
    if (count == 14) {
        if (room >= 16) split_sixteen(pixels, 16, plane, out);
        else split_sixteen(pixels, 14, plane, out);
        return;
    }
    long at = 0;
    for (; at + 16 <= count; at += 16) split_sixteen(pixels + 3 * at, 16, plane, out + at);
    split_rest(pixels, at, count, plane, out);
}

const passes avx2_passes = {
    .name = "avx2", .across = across, .down = down, .split = split, .look_up = look_up};
#endif
