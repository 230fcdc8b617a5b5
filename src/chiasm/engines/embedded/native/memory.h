/* Scratch memory that grows, and owned copies. */
#ifndef CHIASM_MEMORY_H
#define CHIASM_MEMORY_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    void *data;
    size_t size;
} buffer;

static inline void *allocate(size_t bytes) { return aligned_alloc(64, (bytes + 63) / 64 * 64 + 64); }

static inline bool grow(buffer *b, size_t bytes) {
    if (bytes <= b->size) return true;
    free(b->data);
    b->data = allocate(bytes);
    b->size = b->data ? bytes : 0;
    return b->data != NULL;
}

/* In place of what `to` held; NULL is copied as NULL. */
static inline bool copy_floats(const float *from, long count, float **to) {
    free(*to);
    *to = NULL;
    if (!from) return true;
    *to = allocate(count * sizeof(float));
    if (*to) memcpy(*to, from, count * sizeof(float));
    return *to != NULL;
}

#endif
