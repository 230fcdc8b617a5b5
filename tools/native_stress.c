/* Run the native decoder's threads and memory under a sanitizer. Needs nothing of Python:
 *
 *   cd src/chiasm/engines/embedded/native
 *   gcc -std=gnu11 -g -O1 -fsanitize=thread -pthread -I. ../../../../../tools/native_stress.c \
 *     kernels*.c linear.c team.c decoder.c decoder_cut.c -lm -o stress && ./stress
 *
 * and the same with -fsanitize=address,undefined. Several decoders compute random steps at once, each from a thread of
 * its own with three more, and every step's result must be that of one thread, bit for bit.
 */
#include "decoder.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 40, HEADS = 6, KV_HEADS = 2, DIM = 16, INNER = 50, VOCAB = 77, LAYERS = 3, SLOTS = 4, TOKENS = 64 };
enum { QKV = (HEADS + 2 * KV_HEADS) * DIM, ATTENDED = HEADS * DIM, KV = LAYERS * SLOTS * 2 * KV_HEADS * TOKENS * DIM };

typedef struct {
    unsigned seed;
    int steps;
    const char *kernels;
} plan;

static float *noise(unsigned *seed, long count) {
    float *x = malloc(count * sizeof(float));
    for (long i = 0; i < count; i++) x[i] = (float)(rand_r(seed) % 2001 - 1000) * 2e-4f;
    return x;
}

static decoder *make(const plan *p, int threads) {
    const decoder_shape shape = {LAYERS, HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB, false, 1e-6f, 0.25f, 0};
    unsigned seed = p->seed;
    decoder *d = decoder_new(find_kernels(p->kernels, DIM), &shape, threads);
    if (!d) abort();
    for (long i = 0; i < LAYERS; i++) {
        float *parts[12];
        const long sizes[12] = {HIDDEN,         HIDDEN, DIM,    DIM,    QKV * HIDDEN, HIDDEN * ATTENDED, 2 * INNER * HIDDEN,
                                HIDDEN * INNER, QKV,    HIDDEN, 2 * INNER, HIDDEN};
        for (int part = 0; part < 12; part++) parts[part] = noise(&seed, sizes[part]);
        const layer_weights w = {parts[0], parts[1], parts[2], parts[3], parts[4],  parts[5],
                                 parts[6], parts[7], parts[8], parts[9], parts[10], parts[11]};
        if (!decoder_set_layer(d, i, &w)) abort();
        for (int part = 0; part < 12; part++) free(parts[part]);
    }
    float *norm = noise(&seed, HIDDEN), *head = noise(&seed, VOCAB * HIDDEN);
    if (!decoder_set_head(d, norm, head)) abort();
    free(norm);
    free(head);
    return d;
}

/* Memory of exactly the size that is needed, so that a sanitizer sees any step beyond it. */
static void compute(decoder *d, const decoder_step *given, const float *input, float *kv, float *logits) {
    decoder_step s = *given;
    s.x = malloc(s.rows * HIDDEN * sizeof(float));
    s.kv = kv;
    memcpy(s.x, input, s.rows * HIDDEN * sizeof(float));
    s.kept = malloc((s.num_wanted < 0 ? 0 : s.num_wanted) * HIDDEN * sizeof(float));
    if (decoder_check(d, &s) || !decoder_run(d, &s)) abort();
    if (!decoder_logits(d, s.num_wanted < 0 ? s.x : s.kept, s.num_wanted < 0 ? s.rows : s.num_wanted, logits)) abort();
    free(s.x);
    free(s.kept);
}

static void random_step(unsigned *seed, decoder_step *s, run_of_tokens *runs) {
    *s = (decoder_step){.slots = SLOTS, .max_tokens = TOKENS, .runs = runs, .num_runs = 1 + rand_r(seed) % SLOTS};
    s->num_wanted = -1;
    for (long i = 0; i < s->num_runs; i++) {
        const int64_t start = rand_r(seed) % TOKENS;
        const int64_t most = rand_r(seed) % 2 ? TOKENS - start : 1;
        runs[i] = (run_of_tokens){SLOTS - 1 - i, start, 1 + rand_r(seed) % most};
        s->rows += runs[i].count;
    }
}

static void *stress(void *argument) {
    const plan *p = argument;
    unsigned seed = p->seed;
    decoder *one = make(p, 1), *many = make(p, 4);
    float *kv[2] = {noise(&seed, KV), malloc(KV * sizeof(float))};
    memcpy(kv[1], kv[0], KV * sizeof(float));
    for (int i = 0; i < p->steps; i++) {
        decoder_step s;
        run_of_tokens runs[SLOTS];
        random_step(&seed, &s, runs);
        float *x = noise(&seed, s.rows * HIDDEN), *tables = noise(&seed, s.rows * DIM);
        float *deep = noise(&seed, 2 * HIDDEN);
        int64_t deep_row = rand_r(&seed) % s.rows, wanted[SLOTS * TOKENS];
        if (rand_r(&seed) % 2) s.num_wanted = 0;
        for (int64_t row = 0; s.num_wanted >= 0 && row < s.rows; row++)
            if (rand_r(&seed) % 3 == 0) wanted[s.num_wanted++] = row;
        s.cosine = s.sine = tables;
        s.wanted = wanted;
        s.deep = deep;
        s.deep_rows = &deep_row;
        s.num_deep = 1;
        s.num_levels = 2;
        const size_t size = (s.num_wanted < 0 ? s.rows : s.num_wanted) * VOCAB * sizeof(float);
        float *a = malloc(size), *b = malloc(size);
        compute(one, &s, x, kv[0], a);
        compute(many, &s, x, kv[1], b);
        if (memcmp(a, b, size) || memcmp(kv[0], kv[1], KV * sizeof(float))) {
            fprintf(stderr, "%s: step %d differs between one thread and four\n", p->kernels, i);
            abort();
        }
        free(a), free(b), free(x), free(tables), free(deep);
        if (i % 50 == 49) decoder_free(many), many = make(p, 1 + rand_r(&seed) % 5);
    }
    decoder_free(one);
    decoder_free(many);
    free(kv[0]), free(kv[1]);
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
