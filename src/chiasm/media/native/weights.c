#include "weights.h"

#include <stdatomic.h>
#include <stdlib.h>

#define KEPT 4
#define MAX_KEPT (1L << 16) /* numbers of one */

static _Atomic(weights *) kept[KEPT]; /* the last one given back first */

static bool are_sides_alike(const resized_side *one, const resized_side *other) {
    return one->length == other->length && one->size == other->size && one->first == other->first;
}

static bool are_alike(const weights_key *one, const weights_key *other) {
    return are_sides_alike(&one->across, &other->across) && are_sides_alike(&one->down, &other->down) &&
           one->width == other->width && one->height == other->height && one->left_out == other->left_out &&
           one->channels == other->channels && one->filter == other->filter && one->passes == other->passes;
}

static void weights_free(weights *w) {
    if (!w) return;
    coefficients_free(&w->across);
    coefficients_free(&w->down);
    blocks_free(&w->blocks);
    free(w);
}

/* None where the side keeps its length. */
static bool side_make(coefficients *c, const resized_side *side, long count, int filter) {
    if (side->size == side->length) return true;
    if (!coefficients_make(c, filter, side->length, side->size)) return false;
    if (side->size != count) coefficients_keep(c, side->first, count);
    return true;
}

static bool fill(weights *w) {
    const weights_key *key = &w->key;
    if (!side_make(&w->across, &key->across, key->width, key->filter)) return false;
    for (long at = 0; at < w->across.size; at++) w->across.first[at] -= (int32_t)key->left_out;
    if (!side_make(&w->down, &key->down, key->height, key->filter)) return false;
    w->has_digits = key->passes->has_digits && have_digits(&w->down);
    if (!w->across.size || (key->passes->has_digits && blocks_make(&w->blocks, &w->across, key->channels))) return true;
    return coefficients_halve(&w->across);
}

static weights *weights_make(const weights_key *key) {
    weights *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->key = *key;
    if (fill(w)) return w;
    weights_free(w);
    return NULL;
}

weights *weights_take(const weights_key *key) {
    for (int i = 0; i < KEPT; i++) {
        weights *w = atomic_exchange(&kept[i], NULL);
        if (w && are_alike(&w->key, key)) return w;
        if (w) weights_free(atomic_exchange(&kept[i], w));
    }
    return weights_make(key);
}

void weights_give_back(weights *w) {
    if (w->across.size * w->across.taps + w->down.size * w->down.taps > MAX_KEPT) {
        weights_free(w);
        return;
    }
    for (int i = 0; i < KEPT && w; i++) w = atomic_exchange(&kept[i], w);
    weights_free(w);
}
