/* Run the loops over pixels under a sanitizer, with everything that this machine can do. Needs nothing of Python:
 *
 *   cd src/chiasm/media/native
 *   gcc -std=gnu11 -g -O1 -ffp-contract=off -fsanitize=address,undefined -I. ../../../../tools/media_stress.c \
 *     blocks.c coefficients.c layout.c passes*.c quads.c resize.c weights.c -lm -o stress && ./stress
 *
 * Random pictures are resized, whole and in part, cut into patches and looked up, and every way must give the bits of
 * the plain loops. Memory has exactly the size that is needed, so that a sanitizer sees any step beyond it.
 */
#include "layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned seed = 1;

static long between(long least, long most) { return least + rand_r(&seed) % (most - least + 1); }

static long side(void) {
    const long most[] = {9, 40, 300, 1500};
    return between(1, most[between(0, 3)]);
}

static uint8_t *noise(long bytes) {
    uint8_t *found = malloc((size_t)bytes);
    const bool is_hard = between(0, 1); /* the worst case of every rounding */
    for (long i = 0; i < bytes; i++) found[i] = is_hard ? (uint8_t)-between(0, 1) : (uint8_t)between(0, 255);
    return found;
}

typedef struct {
    picture from;
    long width, height, patch, merge, frames;
    int filter;
} task;

static task any_task(void) {
    task t = {{NULL, side(), side(), (int)between(3, 4)}, side(), side(), 0, 1, between(1, 3), (int)between(1, 3)};
    if (between(0, 1)) {
        t.patch = between(0, 1) ? 14 : between(1, 20);
        t.merge = between(1, 3);
        t.width = t.patch * t.merge * between(1, 20);
        t.height = t.patch * t.merge * between(1, 20);
    }
    if (!between(0, 9)) t.width = t.from.width;
    if (!between(0, 9)) t.height = t.from.height;
    if (t.patch && (t.width % (t.patch * t.merge) || t.height % (t.patch * t.merge))) t.patch = 0;
    return t;
}

typedef struct {
    uint8_t *bytes;
    float *floats;
} result;

static result computed(const task *t, const passes *p, const float *table) {
    const long plane = t->width * t->height, bytes = 3 * plane;
    result r = {malloc((size_t)bytes), malloc(sizeof(float) * (size_t)(bytes * t->frames))};
    rows_layout rows = {r.bytes, t->width};
    patches_layout patches = {r.bytes, t->patch ? t->width / t->patch : 0, t->patch, t->merge, t->patch * t->patch, p};
    const bool is_made = t->patch ? resize(&t->from, t->width, t->height, t->filter, p, patches_sink, &patches)
                                  : resize(&t->from, t->width, t->height, t->filter, p, rows_sink, &rows);
    if (!is_made) abort();
    p->look_up(r.bytes, table, 1, plane, t->frames, r.floats);
    return r;
}

static bool are_alike(const task *t, result one, result other) {
    const size_t bytes = (size_t)(3 * t->width * t->height);
    return !memcmp(one.bytes, other.bytes, bytes) &&
           !memcmp(one.floats, other.floats, sizeof(float) * bytes * (size_t)t->frames);
}

/* Some part of what `whole` is all of, alone. */
static bool is_part_alike(const task *t, const passes *p, result whole) {
    const bool keeps_width = t->width == t->from.width, keeps_height = t->height == t->from.height;
    const long left = keeps_width ? 0 : between(0, t->width - 1), top = keeps_height ? 0 : between(0, t->height - 1);
    const long width = keeps_width ? t->width : between(1, t->width - left);
    const long height = keeps_height ? t->height : between(1, t->height - top);
    const resized_side across = {t->from.width, t->width, left}, down = {t->from.height, t->height, top};
    rows_layout rows = {malloc((size_t)(3 * width * height)), width};
    if (!resize_part(&t->from, &across, &down, width, height, t->filter, p, rows_sink, &rows)) abort();
    bool is_alike = true;
    for (long y = 0; y < height; y++) {
        const uint8_t *expected = whole.bytes + 3 * ((top + y) * t->width + left);
        is_alike = is_alike && !memcmp(rows.out + 3 * y * width, expected, (size_t)(3 * width));
    }
    free(rows.out);
    return is_alike;
}

static void drop(result r) {
    free(r.bytes);
    free(r.floats);
}

static bool is_well(const task *t, const float *table) {
    const result plain = computed(t, &generic_passes, table);
    bool is_well = true;
    for (int number = 0; passes_number(number); number++)
        for (int again = 0; again < 2; again++) { /* with weights made anew, then with kept ones */
            const result other = computed(t, passes_number(number), table);
            is_well = is_well && are_alike(t, plain, other) && (t->patch || is_part_alike(t, passes_number(number), plain));
            drop(other);
        }
    drop(plain);
    return is_well;
}

int main(int count, char **arguments) {
    const long turns = count > 1 ? atol(arguments[1]) : 1000;
    float table[3 * 256];
    for (int i = 0; i < 3 * 256; i++) table[i] = (float)i * 0.37f - 11;
    for (long turn = 0; turn < turns; turn++) {
        task t = any_task();
        uint8_t *pixels = noise(t.from.width * t.from.height * t.from.channels);
        t.from.pixels = pixels;
        if (!is_well(&t, table)) {
            printf("%ld x %ld x %d to %ld x %ld by filter %d differs\n", t.from.width, t.from.height, t.from.channels,
                   t.width, t.height, t.filter);
            return 1;
        }
        free(pixels);
    }
    printf("%ld pictures, all alike\n", turns);
    return 0;
}
