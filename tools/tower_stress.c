/* Run the native vision tower's threads and memory under a sanitizer. Needs nothing of Python:
 *
 *   cd src/chiasm/engines/embedded/native
 *   gcc -std=gnu11 -g -O1 -fsanitize=thread -pthread -I. ../../../../../tools/tower_stress.c \
 *     kernels*.c linear.c team.c tower.c tower_phases.c tower_step.c -lm -o stress && ./stress
 *
 * and the same with -fsanitize=address,undefined. Several towers encode random pictures at once, each from a thread of
 * its own with three more, and every result must be that of one thread, bit for bit,
 * also of rows that alone are wanted.
 */
#include "tower.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, HIDDEN = 40, HEADS = 3, DIM = 16, INNER = 50, CHANNELS = 3, FRAMES = 2, PIXELS = 5, MERGE = 2 };
enum { OUT = 37, LEVELS = 1, SIDE = 5, POSITIONS = 24, MOST_PICTURES = 4, MOST_WINDOWS = 400 };
enum { ATTENDED = HEADS * DIM, SQUARE = MERGE * MERGE, MERGED = SQUARE * HIDDEN, PATCH = CHANNELS * PIXELS };

typedef struct {
    unsigned seed;
    int steps;
    const char *kernels;
} plan;

static float *noise(unsigned *seed, long count) {
    float *x = malloc(count * sizeof(float));
    for (long i = 0; i < count; i++) x[i] = (float)(rand_r(seed) % 2001 - 1000) * 4e-4f;
    return x;
}

static void fill(unsigned *seed, float **parts, const long *sizes, int count) {
    for (int i = 0; i < count; i++) parts[i] = noise(seed, sizes[i]);
}

static void drop(float **parts, int count) {
    for (int i = 0; i < count; i++) free(parts[i]);
}

static void set_layer(tower *t, long number, unsigned *seed, bool is_gated, bool is_windowed) {
    const long up = is_gated ? 2 * INNER : INNER;
    const long sizes[12] = {HIDDEN,         HIDDEN,       HIDDEN,       HIDDEN, 3 * ATTENDED * HIDDEN, HIDDEN * ATTENDED,
                            up * HIDDEN,    HIDDEN * INNER, 3 * ATTENDED, HIDDEN, up,                    HIDDEN};
    float *p[12];
    fill(seed, p, sizes, 12);
    const tower_layer_weights w = {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11], is_windowed};
    if (!tower_set_layer(t, number, &w)) abort();
    drop(p, 12);
}

static void set_merger(tower *t, long number, unsigned *seed) {
    const long sizes[6] = {number ? MERGED : HIDDEN, number ? MERGED : HIDDEN, MERGED * MERGED, OUT * MERGED, MERGED, OUT};
    float *p[6];
    fill(seed, p, sizes, 6);
    const merger_weights w = {p[0], p[1], p[2], p[3], p[4], p[5], number ? 0 : LAYERS - 1, number};
    if (!tower_set_merger(t, number, &w)) abort();
    drop(p, 6);
}

/* Without mergers for -1 levels, and then without windows. */
static tower *make(const plan *p, int threads, long levels) {
    const bool is_gated = p->seed % 2;
    const tower_shape shape = {
        .num_layers = LAYERS, .hidden = HIDDEN, .heads = HEADS, .head_dim = DIM, .intermediate = INNER,
        .channels = CHANNELS, .frames = FRAMES, .patch_pixels = PIXELS, .merge = MERGE, .out_hidden = OUT,
        .num_levels = levels, .position_side = SIDE, .is_rms = is_gated, .activation = is_gated ? SWIGLU : GELU_TANH,
        .eps = 1e-6f, .scale = 0.25f,
    };
    unsigned seed = p->seed;
    tower *t = tower_new(find_kernels(p->kernels, DIM), &shape, threads);
    if (!t) abort();
    const long sizes[3] = {HIDDEN * PATCH, HIDDEN, SIDE * SIDE * HIDDEN};
    float *parts[3];
    fill(&seed, parts, sizes, 3);
    if (!tower_set_embedding(t, parts[0], parts[1], parts[2])) abort();
    drop(parts, 3);
    for (long i = 0; i < LAYERS; i++) set_layer(t, i, &seed, is_gated, levels >= 0 && i % 2);
    for (long i = 0; i <= levels; i++) set_merger(t, i, &seed);
    return t;
}

/* Grids of some pictures, windows of any sizes, and a random order of squares. */
static void random_step(unsigned *seed, tower_step *s, int64_t *grids, int64_t *windows) {
    *s = (tower_step){.grids = grids, .num_grids = 1 + rand_r(seed) % MOST_PICTURES, .windows = windows};
    for (long i = 0; i < s->num_grids; i++) {
        for (int axis = 0; axis < 2; axis++) grids[2 * i + axis] = MERGE * (1 + rand_r(seed) % (POSITIONS / MERGE));
        s->rows += grids[2 * i] * grids[2 * i + 1];
    }
    for (long left = s->rows; left; left -= windows[s->num_windows++]) {
        const long size = 1 + rand_r(seed) % 200;
        windows[s->num_windows] = s->num_windows == MOST_WINDOWS - 1 || size > left ? left : size;
    }
}

static int64_t *random_order(unsigned *seed, long count) {
    int64_t *order = malloc(count * sizeof *order);
    for (long i = 0; i < count; i++) {
        const long other = rand_r(seed) % (i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    return order;
}

static bool count(void *context) {
    ++*(long *)context;
    return true;
}

/* Memory of exactly the size that is needed, so that a sanitizer sees any step beyond it. Pieces are 0 for no pauses. */
static float *compute(tower *t, tower_step s, size_t size, double pieces) {
    static const int32_t asked = 1;
    long pauses = 0;
    const tower_pause pause = {count, &pauses, &asked, pieces};
    s.out = malloc(size);
    if (tower_check(t, &s) || tower_run(t, &s, pieces > 0 ? &pause : NULL) != TOWER_DONE) abort();
    if (pieces > 0 && pieces < 100 && !pauses) abort();
    return s.out;
}

static bool refuse(void *context) {
    (void)context;
    return false;
}

/* Begin a step that is given up at its first pause: what is computed next must not see anything of it. */
static void abandon(tower *t, tower_step s, size_t size) {
    static const int32_t asked = 1;
    const tower_pause pause = {refuse, NULL, &asked, 1};
    s.out = malloc(size);
    if (tower_check(t, &s) || tower_run(t, &s, &pause) != TOWER_ABANDONED) abort();
    free(s.out);
}

/* Some rows alone, by many threads, are those of all rows by one. */
static void keep(const plan *p, tower *one, tower *many, unsigned *seed) {
    tower_step s;
    int64_t grids[2 * MOST_PICTURES], windows[MOST_WINDOWS];
    random_step(seed, &s, grids, windows);
    float *patches = noise(seed, s.rows * PATCH * FRAMES), *tables = noise(seed, POSITIONS * DIM / 4);
    int64_t *kept = malloc(s.rows * sizeof *kept);
    s.patches = patches;
    s.cosine = s.sine = tables;
    s.num_positions = POSITIONS;
    s.num_windows = 0;
    const size_t row = HIDDEN * sizeof(float);
    float *all = compute(one, s, s.rows * row, 0);
    for (long i = 0; i < s.rows; i++)
        if (i == s.rows - 1 || rand_r(seed) % 5 == 0) kept[s.num_kept++] = i;
    s.kept = kept;
    float *some = compute(many, s, s.num_kept * row, rand_r(seed) % 1000000 + 1.0);
    for (long i = 0; i < s.num_kept; i++)
        if (memcmp(some + i * HIDDEN, all + kept[i] * HIDDEN, row)) {
            fprintf(stderr, "%s: row %ld differs when others are not wanted\n", p->kernels, (long)kept[i]);
            abort();
        }
    free(all), free(some), free(patches), free(tables), free(kept);
}

static void *stress(void *argument) {
    const plan *p = argument;
    unsigned seed = p->seed;
    tower *one = make(p, 1, LEVELS), *many = make(p, 4, LEVELS);
    tower *bare = make(p, 1, -1), *bare_many = make(p, 4, -1);
    for (int i = 0; i < p->steps; i++) {
        tower_step s;
        int64_t grids[2 * MOST_PICTURES], windows[MOST_WINDOWS];
        random_step(&seed, &s, grids, windows);
        float *patches = noise(&seed, s.rows * PATCH * FRAMES), *tables = noise(&seed, POSITIONS * DIM / 4);
        int64_t *order = random_order(&seed, s.rows / SQUARE);
        s.patches = patches;
        s.order = order;
        s.cosine = s.sine = tables;
        s.num_positions = POSITIONS;
        const size_t size = (1 + LEVELS) * s.rows / SQUARE * OUT * sizeof(float);
        if (i % 4 == 1) abandon(many, s, size);
        float *a = compute(one, s, size, 0), *b = compute(many, s, size, i % 3 ? rand_r(&seed) % 1000000 + 1.0 : 0);
        if (memcmp(a, b, size)) {
            fprintf(stderr, "%s: step %d differs between one thread and four\n", p->kernels, i);
            abort();
        }
        free(a), free(b), free(patches), free(tables), free(order);
        if (i % 50 == 49) tower_free(many), many = make(p, 1 + rand_r(&seed) % 5, LEVELS);
        keep(p, bare, bare_many, &seed);
    }
    tower *towers[] = {one, many, bare, bare_many};
    for (int i = 0; i < 4; i++) tower_free(towers[i]);
    return NULL;
}

int main(int count, char **arguments) {
    const int steps = count > 1 ? atoi(arguments[1]) : 300;
    const char *names[] = {"avx512", "avx2", "generic"};
    pthread_t threads[3];
    plan plans[3];
    for (int i = 0; i < 3; i++) {
        plans[i] = (plan){i + 1, steps, find_kernels(names[i], DIM) ? names[i] : ""};
        if (pthread_create(&threads[i], NULL, stress, &plans[i])) abort();
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    puts("all steps equal");
    return 0;
}
