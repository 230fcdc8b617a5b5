#include "team.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Phases are numbered over the team's whole life. A phase's number and the chunks dealt out (or done) in it share one
 * word that only ever grows, so a thread that comes late sees at once that its phase is over. */
#define CHUNK_BITS 17
_Static_assert(MOST_CHUNKS < 1 << CHUNK_BITS, "a count of chunks fits below the number of its phase");

enum { SPINS_BEFORE_SLEEP = 4000, SPINS_BEFORE_YIELD = 2000 };

typedef struct {
    team *team;
    pthread_t id;
    int thread;
} worker;

struct team {
    alignas(64) _Atomic uint64_t dealt;
    alignas(64) _Atomic uint64_t done;
    alignas(64) _Atomic uint64_t jobs; /* started so far; written under `lock` */
    pthread_mutex_t lock;               /* guards what follows */
    pthread_cond_t wake;
    int sleeping;
    bool is_over;
    void (*body)(const void *, member *);
    uint64_t first_phase;
    size_t job_size;
    alignas(16) unsigned char job[MOST_JOB_BYTES];
    int started;         /* what follows is the owner's */
    uint64_t next_phase;
    worker workers[];
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Memory order: who leaves a phase has seen `done` reach its end, with acquire. Each chunk's end is a release of `done`
 * by read-modify-write, and such writes extend each other's release sequence: everything written in the phase is
 * visible, by whichever thread. Dealing needs no order of its own: a chunk is only taken after the phase before it was
 * left, or, in the first, after the job was read under the lock. A late thread can take nothing: when its phase was left
 * by the caller, `dealt` had reached that phase's end, and it never decreases. */
void team_share(member *me, long chunks, void (*work)(void *, long, int), void *context) {
    team *t = me->team;
    if (team_threads(t) == 1) {
        for (long i = 0; i < chunks; i++) work(context, i, 0);
        return;
    }
    if (!chunks) return;
    const uint64_t base = me->phase++ << CHUNK_BITS, end = base + chunks;
    uint64_t dealt = atomic_load_explicit(&t->dealt, memory_order_relaxed);
    while (dealt < end) {
        const uint64_t mine = dealt < base ? base : dealt; /* the first to come opens the phase */
        if (!atomic_compare_exchange_weak_explicit(
                &t->dealt, &dealt, mine + 1, memory_order_relaxed, memory_order_relaxed))
            continue;
        work(context, mine - base, me->thread);
        uint64_t done = atomic_load_explicit(&t->done, memory_order_relaxed);
        while (!atomic_compare_exchange_weak_explicit(
            &t->done, &done, (done < base ? base : done) + 1, memory_order_release, memory_order_relaxed)) {}
        dealt = atomic_load_explicit(&t->dealt, memory_order_relaxed);
    }
    for (int spins = 0; atomic_load_explicit(&t->done, memory_order_acquire) < end; spins++)
        if (spins < SPINS_BEFORE_YIELD) relax();
        else sched_yield(); /* perhaps to the thread that holds the last chunk */
}

typedef struct {
    void (*work)(const void *, long, long, int);
    const void *context;
    long total, chunk;
} dealing;

static void work_on_chunk(void *context, long number, int thread) {
    const dealing *d = context;
    const long first = number * d->chunk, last = first + d->chunk;
    d->work(d->context, first, last < d->total ? last : d->total, thread);
}

static long divide_up(long a, long b) { return (a + b - 1) / b; }

void team_deal(
    member *me, long total, long unit, void (*work)(const void *, long, long, int), const void *context
) {
    const long threads = team_threads(me->team), pieces = threads == 1 ? 1 : 4 * threads;
    long chunk = divide_up(divide_up(total, pieces), unit) * unit;
    if (chunk * threads > total) chunk = divide_up(total, threads); /* better narrow work than none for some */
    dealing d = {work, context, total, chunk};
    if (total) team_share(me, divide_up(total, chunk), work_on_chunk, &d);
}

/* Wait for a job after number `seen` and copy it; false when there will be none. */
static bool next_job(team *t, uint64_t *seen, unsigned char *job, member *me, void (**body)(const void *, member *)) {
    for (int spins = 0; spins < SPINS_BEFORE_SLEEP; spins++) {
        if (atomic_load_explicit(&t->jobs, memory_order_relaxed) != *seen) break;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    while (!t->is_over && atomic_load_explicit(&t->jobs, memory_order_relaxed) == *seen) {
        t->sleeping++;
        pthread_cond_wait(&t->wake, &t->lock);
        t->sleeping--;
    }
    const bool is_over = t->is_over;
    *seen = atomic_load_explicit(&t->jobs, memory_order_relaxed);
    *body = t->body;
    me->phase = t->first_phase;
    memcpy(job, t->job, t->job_size);
    pthread_mutex_unlock(&t->lock);
    return !is_over;
}

static void *run_worker(void *argument) {
    const worker *self = argument;
    team *t = self->team;
    member me = {t, self->thread, 0};
    alignas(16) unsigned char job[MOST_JOB_BYTES];
    void (*body)(const void *, member *);
    uint64_t seen = 0;
    while (next_job(t, &seen, job, &me, &body)) body(job, &me);
    return NULL;
}

static bool start_worker(team *t) {
    worker *w = &t->workers[t->started];
    *w = (worker){.team = t, .thread = t->started + 1};
    sigset_t all, before;
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errno = pthread_create(&w->id, NULL, run_worker, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!errno) t->started++;
    return !errno;
}

team *team_new(int threads) {
    const size_t size = sizeof(team) + threads * sizeof(worker);
    team *t = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!t) return NULL;
    memset(t, 0, size);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    t->next_phase = 1;
    for (int i = 1; i < threads; i++)
        if (!start_worker(t)) {
            const int error = errno;
            team_free(t);
            errno = error;
            return NULL;
        }
    return t;
}

void team_free(team *t) {
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->is_over = true;
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < t->started; i++) pthread_join(t->workers[i].id, NULL);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

int team_threads(const team *t) { return t ? t->started + 1 : 1; }

void team_run(team *t, void (*body)(const void *, member *), const void *job, size_t size) {
    member me = {t, 0, t->next_phase};
    if (t->started) {
        pthread_mutex_lock(&t->lock);
        t->body = body;
        t->first_phase = t->next_phase; /* not earlier: a late thread must see the last job's number with the last job */
        t->job_size = size;
        memcpy(t->job, job, size);
        atomic_fetch_add_explicit(&t->jobs, 1, memory_order_relaxed);
        if (t->sleeping) pthread_cond_broadcast(&t->wake);
        pthread_mutex_unlock(&t->lock);
    }
    body(job, &me);
    t->next_phase = me.phase;
}
