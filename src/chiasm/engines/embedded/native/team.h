/* Threads that do one job after another together.
 *
 * A job is a function that every thread runs. It comes to phases, in the same order on each; a phase's chunks are dealt
 * out one by one to whoever asks, and no thread leaves a phase before all its chunks are done. So a thread that the
 * system keeps waiting delays nobody except by the chunk it holds: the others, at least the caller, do its share.
 */
#ifndef CHIASM_TEAM_H
#define CHIASM_TEAM_H

#include <stddef.h>
#include <stdint.h>

typedef struct team team;

/* One thread's place in a job. */
typedef struct {
    team *team; /* NULL for a job that the caller does alone */
    int thread; /* 0 is the caller */
    uint64_t phase;
} member;

enum { MOST_JOB_BYTES = 512, MOST_CHUNKS = 1 << 16 };

/* NULL when memory or threads are refused (errno). `threads` counts the caller. */
team *team_new(int threads);

/* Join all threads. NULL is allowed. */
void team_free(team *t);

/* Of NULL: 1. */
int team_threads(const team *t);

/* Run `body` on all threads with a copy of the job each; returns when its phases are over. One caller at a time. */
void team_run(team *t, void (*body)(const void *job, member *me), const void *job, size_t size);

/* A phase: `work` is called once per chunk, 0 .. chunks - 1, on any thread. */
void team_share(member *me, long chunks, void (*work)(void *context, long chunk, int thread), void *context);

/* A phase over 0 .. total - 1: `work` gets ranges small enough that threads end together, and of whole `unit`s, which a
 * kernel takes at once. */
void team_deal(
    member *me, long total, long unit, void (*work)(const void *context, long first, long last, int thread),
    const void *context
);

#endif
