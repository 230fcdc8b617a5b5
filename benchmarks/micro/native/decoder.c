#define _GNU_SOURCE
#include "kernels.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
extern const struct Kernels avx2_kernels, avx512_kernels;
static const struct Kernels *K;
struct Layer {
    const float *in_norm, *post_norm, *q_norm, *k_norm, *qkv_bias;
    const void *qkv, *out, *gate_up, *down;
};
struct Model {
    int num_layers, hidden, heads, kv_heads, head_dim, inter, vocab, bf16;
    float eps, scale;
    const struct Layer *layers;
    const float *final_norm;
    const void *head;
};
struct Batch {
    int rows, need_rows, max_len, levels;
    float *x;
    const float *cos, *sin;
    const int32_t *slot, *pos, *need;
    float *k, *v;
    size_t slot_stride, layer_stride;
    float *logits;
    const float *deepstack;
};
enum { MAX_THREADS = 64, MAX_PHASES = 4096 };
struct Job {
    const struct Model *m;
    struct Batch b;
    float *norm, *qkv, *att, *act, *scores;
    size_t score_size;
};
static struct Job job;
static size_t cap_rows;
static const struct Model *cap_model;
struct Counter {
    _Atomic uint64_t ticket;
    _Atomic uint64_t done;
    char pad[48];
};
static struct Counter counters[MAX_PHASES];
static _Atomic uint32_t epoch;
static int num_threads = 1;
static int started;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static _Atomic int sleepers;
static int round_up(int n, int k) { return (n + k - 1) / k; }
typedef void (*Work)(const struct Job *j, int phase_arg, int first, int last, int thread);

static void do_norm_in(const struct Job *j, int l, int a, int b, int t) {
    int D = j->m->hidden;
    for (int r = a; r < b; r++)
        K->norm(j->b.x + (size_t)r * D, j->m->layers[l].in_norm, D, j->m->eps, j->norm + (size_t)r * D);
}
static void do_norm_post(const struct Job *j, int l, int a, int b, int t) {
    int D = j->m->hidden;
    for (int r = a; r < b; r++)
        K->norm(j->b.x + (size_t)r * D, j->m->layers[l].post_norm, D, j->m->eps, j->norm + (size_t)r * D);
}
static int qkv_width(const struct Model *m) { return (m->heads + 2 * m->kv_heads) * m->head_dim; }
static void do_qkv(const struct Job *j, int l, int a, int b, int t) {
    const struct Model *m = j->m;
    K->linear(m->bf16, m->layers[l].qkv_bias ? BIAS : SET, j->norm, j->b.rows, m->hidden, m->layers[l].qkv, a, b,
              j->qkv, qkv_width(m), m->layers[l].qkv_bias);
}
static void do_rope(const struct Job *j, int l, int a, int b, int t) {
    const struct Model *m = j->m;
    const struct Batch *bt = &j->b;
    int d = m->head_dim, n = m->heads + m->kv_heads;
    const struct Layer *L = m->layers + l;
    for (int r = a; r < b; r++) {
        float *q = j->qkv + (size_t)r * qkv_width(m);
        for (int h = 0; h < n; h++) {
            const float *g = h < m->heads ? L->q_norm : L->k_norm;
            if (g) K->norm(q + h * d, g, d, m->eps, q + h * d);
            K->rotate(q + h * d, bt->cos + (size_t)r * d / 2, bt->sin + (size_t)r * d / 2, d);
        }
        for (int h = 0; h < m->kv_heads; h++) {
            size_t at =
                l * bt->layer_stride + bt->slot[r] * bt->slot_stride + ((size_t)h * bt->max_len + bt->pos[r]) * d;
            memcpy(bt->k + at, q + (m->heads + h) * d, d * 4);
            memcpy(bt->v + at, q + (n + h) * d, d * 4);
        }
    }
}
static void do_attend(const struct Job *j, int l, int a, int b, int t) {
    const struct Model *m = j->m;
    const struct Batch *bt = &j->b;
    int d = m->head_dim, G = m->heads / m->kv_heads;
    for (int i = a; i < b; i++) {
        int r = i / m->kv_heads, h = i % m->kv_heads;
        size_t at = l * bt->layer_stride + bt->slot[r] * bt->slot_stride + (size_t)h * bt->max_len * d;
        K->attend(j->qkv + (size_t)r * qkv_width(m) + h * G * d, bt->k + at, bt->v + at, bt->pos[r] + 1, d, G, m->scale,
                  j->scores + t * j->score_size, j->att + ((size_t)r * m->heads + h * G) * d);
    }
}
static void do_out(const struct Job *j, int l, int a, int b, int t) {
    const struct Model *m = j->m;
    K->linear(m->bf16, ADD, j->att, j->b.rows, m->heads * m->head_dim, m->layers[l].out, a, b, j->b.x, m->hidden, 0);
}
static void do_gate_up(const struct Job *j, int l, int a, int b, int t) {
    const struct Model *m = j->m;
    K->linear(m->bf16, SWIGLU, j->norm, j->b.rows, m->hidden, m->layers[l].gate_up, a, b, j->act, m->inter, 0);
}
static void do_down(const struct Job *j, int l, int a, int b, int t) {
    const struct Model *m = j->m;
    K->linear(m->bf16, ADD, j->act, j->b.rows, m->inter, m->layers[l].down, a, b, j->b.x, m->hidden, 0);
}
static void do_deep(const struct Job *j, int l, int a, int b, int t) {
    size_t D = j->m->hidden;
    const float *s = j->b.deepstack + (size_t)l * j->b.rows * D;
    for (size_t i = a * D; i < b * D; i++) j->b.x[i] += s[i];
}
static void do_final(const struct Job *j, int l, int a, int b, int t) {
    int D = j->m->hidden;
    for (int r = a; r < b; r++)
        K->norm(j->b.x + (size_t)j->b.need[r] * D, j->m->final_norm, D, j->m->eps, j->norm + (size_t)r * D);
}
static void do_head(const struct Job *j, int l, int a, int b, int t) {
    const struct Model *m = j->m;
    K->linear(m->bf16, SET, j->norm, j->b.need_rows, m->hidden, m->head, a, b, j->b.logits, m->vocab, 0);
}

static inline void pause_cpu(void) { __builtin_ia32_pause(); }
// Returns 0 when the step moved on without us.
static int phase(uint32_t e, int index, Work work, int arg, int total, int chunk, int thread, const struct Job *j) {
    if (num_threads == 1) {
        work(j, arg, 0, total, 0);
        return 1;
    }
    struct Counter *c = counters + index;
    uint64_t base = (uint64_t)e << 32;
    int chunks = round_up(total, chunk);
    for (;;) {
        uint64_t t = atomic_load_explicit(&c->ticket, memory_order_relaxed);
        if (t >> 32 != e) {
            if ((t >> 32) > e) return 0;
            if (!atomic_compare_exchange_weak(&c->ticket, &t, base)) continue;
            t = base;
        }
        int i = (int)(t & 0xffffffff);
        if (i >= chunks) break;
        if (!atomic_compare_exchange_weak(&c->ticket, &t, t + 1)) continue;
        int first = i * chunk, last = first + chunk < total ? first + chunk : total;
        work(j, arg, first, last, thread);
        uint64_t d = atomic_load(&c->done);
        for (;;) {
            uint64_t nd = (d >> 32 == e ? d : base) + 1;
            if (atomic_compare_exchange_weak(&c->done, &d, nd)) break;
        }
    }
    uint64_t want = base + chunks;
    int spins = 0;
    while (atomic_load_explicit(&c->done, memory_order_acquire) < want) {
        if (++spins < 4000) pause_cpu();
        else sched_yield();
        if (atomic_load_explicit(&epoch, memory_order_relaxed) != e) return 0;
    }
    return 1;
}
static int fit(int panels) {
    int c = panels / (num_threads * 4);
    return c < 4 ? (panels >= 4 * num_threads ? 4 : (panels + num_threads - 1) / num_threads) : c / 4 * 4;
}
static void run(uint32_t e, int t, const struct Job *j) {
    const struct Model *m = j->m;
    const struct Batch *b = &j->b;
    int v = K->vector, nr = 2 * v, i = 0, rows = b->rows;
    int rc = rows > 4 * num_threads ? rows / (4 * num_threads) : 1, ai = rows * m->kv_heads,
        ac = ai > 8 * num_threads ? ai / (8 * num_threads) : 1;
    int pq = round_up(qkv_width(m), nr), pd = round_up(m->hidden, nr), pi = round_up(m->inter, v),
        ph = round_up(m->vocab, nr);
#define PHASE(work, arg, total, chunk)                                                                                 \
    if (!phase(e, i++, work, arg, total, chunk, t, j)) return
    for (int l = 0; l < m->num_layers; l++) {
        PHASE(do_norm_in, l, rows, rc);
        PHASE(do_qkv, l, pq, fit(pq));
        PHASE(do_rope, l, rows, rc);
        PHASE(do_attend, l, ai, ac);
        PHASE(do_out, l, pd, fit(pd));
        PHASE(do_norm_post, l, rows, rc);
        PHASE(do_gate_up, l, pi, fit(pi));
        PHASE(do_down, l, pd, fit(pd));
        if (l < b->levels) PHASE(do_deep, l, rows, rc);
    }
    if (b->need_rows) {
        PHASE(do_final, 0, b->need_rows, 1);
        PHASE(do_head, 0, ph, fit(ph));
    }
}
static void *worker(void *arg) {
    int t = (int)(intptr_t)arg;
    uint32_t seen = 0;
    for (;;) {
        uint32_t e;
        int spins = 0;
        while ((e = atomic_load_explicit(&epoch, memory_order_acquire)) == seen) {
            if (++spins < 20000) {
                pause_cpu();
                continue;
            }
            pthread_mutex_lock(&lock);
            atomic_fetch_add(&sleepers, 1);
            while ((e = atomic_load(&epoch)) == seen) pthread_cond_wait(&wake, &lock);
            atomic_fetch_sub(&sleepers, 1);
            pthread_mutex_unlock(&lock);
        }
        if (e & 1) continue;
        struct Job mine = job;
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load(&epoch) != e) continue;
        seen = e;
        run(e, t, &mine);
    }
    return 0;
}
int setup(int threads, int isa) {
    __builtin_cpu_init();
    K = isa == 512 || (isa == 0 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
            ? &avx512_kernels
            : &avx2_kernels;
    num_threads = threads;
    for (; started < threads - 1; started++) {
        pthread_t id;
        pthread_create(&id, 0, worker, (void *)(intptr_t)(started + 1));
    }
    return K->vector;
}
void pack(int bf16, int swiglu, const void *w, int N, int Kd, void *out) { K->pack(bf16, swiglu, w, N, Kd, out); }
void forward(const struct Model *m, const struct Batch *b) {
    atomic_fetch_add(&epoch, 1);
    if ((size_t)b->rows > cap_rows || m != cap_model) {
        free(job.norm);
        free(job.qkv);
        free(job.att);
        free(job.act);
        free(job.scores);
        cap_rows = b->rows;
        cap_model = m;
        size_t n = b->rows;
        job.norm = aligned_alloc(64, (n * m->hidden * 4 + 63) / 64 * 64);
        job.qkv = aligned_alloc(64, (n * qkv_width(m) * 4 + 63) / 64 * 64 + 256);
        job.att = aligned_alloc(64, (n * m->heads * m->head_dim * 4 + 63) / 64 * 64);
        job.act = aligned_alloc(64, (n * m->inter * 4 + 63) / 64 * 64 + 256);
        job.score_size = (size_t)(b->max_len + 16) * (m->heads / m->kv_heads);
        job.scores = aligned_alloc(64, (job.score_size * num_threads * 4 + 63) / 64 * 64);
    }
    job.m = m;
    job.b = *b;
    uint32_t e = atomic_fetch_add(&epoch, 1) + 1;
    if (atomic_load(&sleepers)) {
        pthread_mutex_lock(&lock);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&lock);
    }
    run(e, 0, &job);
}
void linear(int bf16, int mode, const float *x, int M, int Kd, const void *w, int panels, float *out, int ldo) {
    K->linear(bf16, mode, x, M, Kd, w, 0, panels, out, ldo, 0);
}
