#include "jpeg_pixels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#ifndef __clang__
#pragma GCC target("avx2,bmi2")
#define AVX2
#else
#define AVX2 __attribute__((target("avx2,bmi2")))
#endif
#include <immintrin.h>
#include <string.h>

/* Loeffler, Ligtenberg and Moschytz's transform with 11 multiplications, its constants with 13 bits behind the point:
 * products of pairs are summed where the original multiplies sums. */
#define CONSTANT_BITS 13
#define KEPT_BITS 2 /* more precision between the passes */
#define C0298 2446
#define C0390 3196
#define C0541 4433
#define C0765 6270
#define C0899 7373
#define C1175 9633
#define C1501 12299
#define C1847 15137
#define C1961 16069
#define C2053 16819
#define C2562 20995
#define C3072 25172

typedef struct {
    __m256i low, high; /* 32-bit numbers of the lower and upper four lanes of either half */
} wide;

AVX2 static inline wide dot(__m256i a, int weight_a, __m256i b, int weight_b) {
    const __m256i weights = _mm256_set1_epi32((int32_t)((uint32_t)(uint16_t)weight_a | (uint32_t)weight_b << 16));
    return (wide){
        _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weights),
        _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weights)};
}

AVX2 static inline wide raised(__m256i a) {
    const __m256i zero = _mm256_setzero_si256();
    return (wide){
        _mm256_srai_epi32(_mm256_unpacklo_epi16(zero, a), 16 - CONSTANT_BITS),
        _mm256_srai_epi32(_mm256_unpackhi_epi16(zero, a), 16 - CONSTANT_BITS)};
}

AVX2 static inline wide sum(wide a, wide b) {
    return (wide){_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}

AVX2 static inline wide difference(wide a, wide b) {
    return (wide){_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}

AVX2 static inline __m256i lowered(wide a, int bits) {
    const __m256i half = _mm256_set1_epi32(1 << (bits - 1));
    return _mm256_packs_epi32(
        _mm256_srai_epi32(_mm256_add_epi32(a.low, half), bits),
        _mm256_srai_epi32(_mm256_add_epi32(a.high, half), bits));
}

AVX2 static inline void transform(__m256i *v, int bits) {
    const wide even[2] = {raised(_mm256_add_epi16(v[0], v[4])), raised(_mm256_sub_epi16(v[0], v[4]))};
    const wide two = dot(v[2], C0541, v[6], C0541 - C1847), three = dot(v[2], C0541 + C0765, v[6], C0541);
    const wide evens[4] = {
        sum(even[0], three), sum(even[1], two), difference(even[1], two), difference(even[0], three)};
    const __m256i z3 = _mm256_add_epi16(v[7], v[3]), z4 = _mm256_add_epi16(v[5], v[1]);
    const wide third = dot(z3, C1175 - C1961, z4, C1175), fourth = dot(z3, C1175, z4, C1175 - C0390);
    const wide odds[4] = {
        sum(dot(v[1], C1501 - C0899, v[7], -C0899), fourth), sum(dot(v[3], C3072 - C2562, v[5], -C2562), third),
        sum(dot(v[5], C2053 - C2562, v[3], -C2562), fourth), sum(dot(v[7], C0298 - C0899, v[1], -C0899), third)};
    for (int i = 0; i < 4; i++) {
        v[i] = lowered(sum(evens[i], odds[i]), bits);
        v[7 - i] = lowered(difference(evens[i], odds[i]), bits);
    }
}

/* 8 x 8 numbers in either half. */
AVX2 static inline void transpose(__m256i *v) {
    __m256i a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi16(v[2 * i], v[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi16(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            b[4 * i + 2 * j] = _mm256_unpacklo_epi32(a[4 * i + j], a[4 * i + 2 + j]);
            b[4 * i + 2 * j + 1] = _mm256_unpackhi_epi32(a[4 * i + j], a[4 * i + 2 + j]);
        }
    for (int i = 0; i < 4; i++) {
        v[2 * i] = _mm256_unpacklo_epi64(b[i], b[4 + i]);
        v[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[4 + i]);
    }
}

AVX2 static inline __m256i both(const int16_t *one, const int16_t *other, long at) {
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_load_si128((const void *)(one + at))), _mm_load_si128((const void *)(other + at)), 1);
}

AVX2 void jpeg_two_blocks(
    const int16_t *const *blocks, const int16_t *const *quant, uint8_t *const *targets, const long *strides) {
    __m256i v[8];
    for (long i = 0; i < 8; i++)
        v[i] = _mm256_mullo_epi16(both(blocks[0], blocks[1], 8 * i), both(quant[0], quant[1], 8 * i));
    transform(v, CONSTANT_BITS - KEPT_BITS);
    transpose(v);
    transform(v, CONSTANT_BITS + KEPT_BITS + 3);
    transpose(v);
    const __m256i middle = _mm256_set1_epi8((char)128);
    for (int i = 0; i < 8; i += 2) {
        const __m256i rows = _mm256_add_epi8(_mm256_packs_epi16(v[i], v[i + 1]), middle);
        const __m128i halves[2] = {_mm256_castsi256_si128(rows), _mm256_extracti128_si256(rows, 1)};
        for (int block = 0; block < 2; block++) {
            uint8_t *out = targets[block] + i * strides[block];
            _mm_storel_epi64((void *)out, halves[block]);
            _mm_storeh_pd((void *)(out + strides[block]), _mm_castsi128_pd(halves[block]));
        }
    }
}

void jpeg_flat_block(int32_t dc, uint8_t *target, long stride) {
    int32_t sample = ((dc + 4) >> 3) + 128;
    sample = sample < 0 ? 0 : sample > 255 ? 255 : sample;
    for (int row = 0; row < 8; row++) memset(target + row * stride, sample, 8);
}

AVX2 static inline __m256i words_at(const uint8_t *at) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)at));
}

/* 16 even and 16 odd samples, as words of 0 .. 255, in turns. */
AVX2 static inline void store_turns(__m256i even, __m256i odd, uint8_t *out) {
    _mm256_storeu_si256((void *)out, _mm256_or_si256(even, _mm256_slli_epi16(odd, 8)));
}

AVX2 static inline __m256i thrice(__m256i a) { return _mm256_add_epi16(a, _mm256_add_epi16(a, a)); }

AVX2 static inline __m256i between(const uint8_t *near, const uint8_t *far) {
    return _mm256_add_epi16(thrice(words_at(near)), words_at(far));
}

AVX2 void jpeg_widen_between(const uint8_t *near, const uint8_t *far, long count, uint8_t *out) {
    const __m256i eight = _mm256_set1_epi16(8), seven = _mm256_set1_epi16(7);
    for (long i = 0; i < count; i += 16) {
        const __m256i here = thrice(between(near + i, far + i));
        const __m256i before = between(near + i - 1, far + i - 1), after = between(near + i + 1, far + i + 1);
        store_turns(
            _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(here, before), eight), 4),
            _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(here, after), seven), 4), out + 2 * i);
    }
}

AVX2 void jpeg_widen(const uint8_t *row, long count, uint8_t *out) {
    const __m256i one = _mm256_set1_epi16(1), two = _mm256_set1_epi16(2);
    for (long i = 0; i < count; i += 16) {
        const __m256i here = thrice(words_at(row + i));
        store_turns(
            _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(here, words_at(row + i - 1)), one), 2),
            _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(here, words_at(row + i + 1)), two), 2), out + 2 * i);
    }
}

/* 16 bytes of each colour to 48. */
AVX2 static inline void store_rgb(__m128i red, __m128i green, __m128i blue, uint8_t *out) {
#define NO -1
    const __m128i r[3] = {
        _mm_setr_epi8(0, NO, NO, 1, NO, NO, 2, NO, NO, 3, NO, NO, 4, NO, NO, 5),
        _mm_setr_epi8(NO, NO, 6, NO, NO, 7, NO, NO, 8, NO, NO, 9, NO, NO, 10, NO),
        _mm_setr_epi8(NO, 11, NO, NO, 12, NO, NO, 13, NO, NO, 14, NO, NO, 15, NO, NO)};
    const __m128i g[3] = {
        _mm_setr_epi8(NO, 0, NO, NO, 1, NO, NO, 2, NO, NO, 3, NO, NO, 4, NO, NO),
        _mm_setr_epi8(5, NO, NO, 6, NO, NO, 7, NO, NO, 8, NO, NO, 9, NO, NO, 10),
        _mm_setr_epi8(NO, NO, 11, NO, NO, 12, NO, NO, 13, NO, NO, 14, NO, NO, 15, NO)};
    const __m128i b[3] = {
        _mm_setr_epi8(NO, NO, 0, NO, NO, 1, NO, NO, 2, NO, NO, 3, NO, NO, 4, NO),
        _mm_setr_epi8(NO, 5, NO, NO, 6, NO, NO, 7, NO, NO, 8, NO, NO, 9, NO, NO),
        _mm_setr_epi8(10, NO, NO, 11, NO, NO, 12, NO, NO, 13, NO, NO, 14, NO, NO, 15)};
#undef NO
    for (int i = 0; i < 3; i++) {
        const __m128i bytes = _mm_or_si128(
            _mm_or_si128(_mm_shuffle_epi8(red, r[i]), _mm_shuffle_epi8(green, g[i])), _mm_shuffle_epi8(blue, b[i]));
        _mm_storeu_si128((void *)(out + 16 * i), bytes);
    }
}

/* round(x * weight / 65536) for a weight of 16 bits. */
AVX2 static inline __m256i scaled(__m256i x, int weight) {
    const __m256i twice = _mm256_mulhi_epi16(_mm256_add_epi16(x, x), _mm256_set1_epi16((int16_t)weight));
    return _mm256_srai_epi16(_mm256_add_epi16(twice, _mm256_set1_epi16(1)), 1);
}

#define RED_CR 26345    /* 1.402 - 1, with 16 bits behind the point */
#define BLUE_CB (-14942) /* 1.772 - 2 */
#define GREEN_CB (-22554)
#define GREEN_CR 18734 /* 1 - 0.71414 */

AVX2 static inline __m256i green_part(__m256i cb, __m256i cr) {
    const __m256i half = _mm256_set1_epi32(1 << 15);
    const wide both = dot(cb, GREEN_CB, cr, GREEN_CR);
    return _mm256_packs_epi32(
        _mm256_srai_epi32(_mm256_add_epi32(both.low, half), 16), _mm256_srai_epi32(_mm256_add_epi32(both.high, half), 16));
}

AVX2 static inline __m128i bytes_of(__m256i words) {
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0x08));
}

AVX2 static inline void store_sixteen(const uint8_t *ys, const uint8_t *cbs, const uint8_t *crs, uint8_t *out) {
    const __m256i middle = _mm256_set1_epi16(128), y = words_at(ys);
    const __m256i cb = _mm256_sub_epi16(words_at(cbs), middle), cr = _mm256_sub_epi16(words_at(crs), middle);
    const __m256i red = _mm256_add_epi16(_mm256_add_epi16(y, cr), scaled(cr, RED_CR));
    const __m256i blue = _mm256_add_epi16(_mm256_add_epi16(y, _mm256_add_epi16(cb, cb)), scaled(cb, BLUE_CB));
    const __m256i green = _mm256_add_epi16(_mm256_sub_epi16(y, cr), green_part(cb, cr));
    store_rgb(bytes_of(red), bytes_of(green), bytes_of(blue), out);
}

AVX2 void jpeg_rgb(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, long count, uint8_t *out) {
    long i = 0;
    for (; i + 16 <= count; i += 16) store_sixteen(y + i, cb + i, cr + i, out + 3 * i);
    if (i == count) return;
    uint8_t last[48];
    store_sixteen(y + i, cb + i, cr + i, last);
    memcpy(out + 3 * i, last, (size_t)(count - i) * 3);
}

void jpeg_grey_rgb(const uint8_t *y, long count, uint8_t *out) {
    for (long i = 0; i < count; i++, out += 3) out[0] = out[1] = out[2] = y[i];
}
#endif
