#include "passes.h"

#include <string.h>

static inline uint8_t rounded(int32_t sum) {
    sum = (sum + (1 << (PRECISION - 1))) >> PRECISION;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void across(
    const coefficients *c, int channels, int rows, const uint8_t *const *sources, uint8_t *const *targets) {
    for (int row = 0; row < rows; row++) {
        uint8_t *target = targets[row];
        for (long at = 0; at < c->size; at++, target += 3) {
            const uint8_t *source = sources[row] + (long)c->first[at] * channels;
            const int32_t *weights = c->weights + at * c->taps;
            int32_t red = 0, green = 0, blue = 0;
            for (long tap = 0; tap < c->counts[at]; tap++, source += channels) {
                red += source[0] * weights[tap];
                green += source[1] * weights[tap];
                blue += source[2] * weights[tap];
            }
            target[0] = rounded(red);
            target[1] = rounded(green);
            target[2] = rounded(blue);
        }
    }
}

#define STRIP 256

void down_rest(
    const coefficients *c, long at, const uint8_t *const *sources, long start, long bytes, uint8_t *target) {
    int32_t sums[STRIP];
    for (; start < bytes; start += STRIP) {
        const long length = bytes - start < STRIP ? bytes - start : STRIP;
        memset(sums, 0, sizeof sums);
        for (long tap = 0; tap < c->counts[at]; tap++) {
            const uint8_t *source = sources[tap] + start;
            const int32_t weight = c->weights[at * c->taps + tap];
            for (long i = 0; i < length; i++) sums[i] += source[i] * weight;
        }
        for (long i = 0; i < length; i++) target[start + i] = rounded(sums[i]);
    }
}

static void down(const coefficients *c, long at, const uint8_t *const *sources, long bytes, uint8_t *target) {
    down_rest(c, at, sources, 0, bytes, target);
}

void split_rest(const uint8_t *pixels, long start, long count, long plane, uint8_t *out) {
    for (long i = start; i < count; i++)
        for (long channel = 0; channel < 3; channel++) out[channel * plane + i] = pixels[3 * i + channel];
}

static void split(const uint8_t *pixels, long count, long plane, long room, uint8_t *out) {
    (void)room;
    /* constants for the usual sizes let the compiler unroll */
    if (count == 14) split_rest(pixels, 0, 14, plane, out);
    else if (count == 16) split_rest(pixels, 0, 16, plane, out);
    else split_rest(pixels, 0, count, plane, out);
}

void look_up(const uint8_t *bytes, const float *table, long count, long plane, long frames, float *out) {
    for (long number = 0; number < 3 * count; number++, bytes += plane) {
        const float *values = table + number % 3 * 256;
        long i = 0;
        for (; i + 4 <= plane; i += 4) { /* compilers leave it to us to do some at once */
            out[i] = values[bytes[i]];
            out[i + 1] = values[bytes[i + 1]];
            out[i + 2] = values[bytes[i + 2]];
            out[i + 3] = values[bytes[i + 3]];
        }
        for (; i < plane; i++) out[i] = values[bytes[i]];
        for (long frame = 1; frame < frames; frame++)
            memcpy(out + frame * plane, out, (size_t)plane * sizeof *out);
        out += frames * plane;
    }
}

const passes generic_passes = {
    .name = "generic", .across = across, .down = down, .split = split, .look_up = look_up};

static bool is_supported(const passes *p) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (p == &avx2_passes) return __builtin_cpu_supports("avx2");
    if (p == &avx512_passes)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
#endif
    return p == &generic_passes;
}

const passes *passes_number(int number) {
    static const passes *const all[] = {
#if defined(__x86_64__) && defined(__GNUC__)
        &avx512_passes, &avx2_passes,
#endif
        &generic_passes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (is_supported(all[i]) && number-- == 0) return all[i];
    return NULL;
}
