/* What a step may be, and how its rows are cut into what threads share. */
#include "decoder_parts.h"

/* Queries of one key head that go over its keys together. */
#define QUERIES_AT_ONCE 16
/* Rows of an adapter that one thread shrinks at once. */
#define ADAPTED_AT_ONCE 24

const char *decoder_check(const decoder *d, const decoder_step *s) {
    int64_t rows = 0;
    for (long i = 0; i < s->num_runs; i++) {
        const run_of_tokens *r = &s->runs[i];
        if (r->slot < 0 || r->slot >= s->slots) return "a slot that is not there";
        if (r->count < 1 || r->start < 0 || r->count > s->max_tokens || r->start > s->max_tokens - r->count)
            return "tokens beyond the end of a slot";
        for (long other = 0; other < i; other++)
            if (s->runs[other].slot == r->slot) return "a slot that occurs twice";
        rows += r->count;
    }
    if (rows != s->rows) return "another number of tokens than rows";
    if (s->num_levels > d->shape.num_layers) return "more deepstack levels than layers";
    for (long i = 0; i < s->num_deep; i++)
        if (s->deep_rows[i] < 0 || s->deep_rows[i] >= s->rows) return "deepstack values for a row that is not there";
    if (s->num_wanted >= 0 && s->num_levels == d->shape.num_layers) return "wanted rows of a model with levels after each layer";
    for (long i = 0; i < s->num_wanted; i++)
        if (s->wanted[i] < (i ? s->wanted[i - 1] + 1 : 0) || s->wanted[i] >= s->rows) return "wanted rows out of order";
    long end = 0;
    for (const adapted_rows *a = s->adapted; a < s->adapted + s->num_adapted; end = a->row + a->count, a++)
        if (a->row < end || a->count < 1 || a->count > s->rows - a->row) return "rows of an adapter out of order";
    return NULL;
}

/* A tile of its own for each wanted row. */
static void cut_wanted(const decoder_step *s, tile *tiles) {
    const run_of_tokens *r = s->runs;
    long first = 0;
    for (long i = 0; i < s->num_wanted; i++) {
        while (s->wanted[i] >= first + r->count) first += r++->count;
        tiles[i] = (tile){s->wanted[i], r->slot, r->start + s->wanted[i] - first, 1, i};
    }
}

/* Cut runs into tiles; also find the longest context. */
static void cut(const decoder *d, const decoder_step *s, tile *tiles, job *j) {
    const long group = d->shape.heads / d->shape.kv_heads;
    const long most_rows = group < QUERIES_AT_ONCE ? QUERIES_AT_ONCE / group : 1;
    long row = 0;
    for (const run_of_tokens *r = s->runs; r < s->runs + s->num_runs; r++) {
        for (long i = 0; i < r->count; i += most_rows)
            tiles[j->num_tiles++] = (tile){row + i, r->slot, r->start + i, smaller(most_rows, r->count - i), row + i};
        row += r->count;
        if (r->start + r->count > j->most_keys) j->most_keys = r->start + r->count;
    }
    j->scores_per_thread = (size_t)most_rows * group * (j->most_keys + 16);
}

static bool is_wanted_by(const adapted_rows *a, int64_t row) { return row >= a->row && row < a->row + a->count; }

/* Cut rows with adapters into spans that threads can share, then those of the wanted rows. */
static void cut_adapted(const decoder_step *s, adapted_rows *to, job *j) {
    for (const adapted_rows *a = s->adapted; a < s->adapted + s->num_adapted; a++) {
        for (long i = 0; i < a->count; i += ADAPTED_AT_ONCE)
            to[j->num_adapted++] = (adapted_rows){a->adapter, a->row + i, smaller(ADAPTED_AT_ONCE, a->count - i)};
        for (int part = 0; part < NUM_PARTS; part++) j->touches[part] |= a->adapter->touches[part];
        if (a->adapter->most_rank > j->most_rank) j->most_rank = a->adapter->most_rank;
    }
    to += j->num_adapted;
    const adapted_rows *a = s->adapted, *last = s->adapted + s->num_adapted;
    for (long i = 0; i < s->num_wanted; i++) {
        while (a < last && a->row + a->count <= s->wanted[i]) a++;
        if (a < last && is_wanted_by(a, s->wanted[i])) to[j->num_wanted_adapted++] = (adapted_rows){a->adapter, i, 1};
    }
}

static bool prepare_adapted(decoder *d, const decoder_step *s, job *j) {
    const long num_wanted = s->num_wanted > 0 ? s->num_wanted : 0;
    if (!grow(&d->adapted, (s->rows + num_wanted) * sizeof(adapted_rows))) return false;
    cut_adapted(s, d->adapted.data, j);
    const size_t raw = j->touches[GATE_UP] ? (d->shape.intermediate + d->k->lanes) * 2 : 0;
    if (!grow(&d->low, s->rows * j->most_rank * sizeof(float)) || !grow(&d->raw, s->rows * raw * sizeof(float)))
        return false;
    j->adapted = d->adapted.data;
    j->low = d->low.data;
    j->raw = d->raw.data;
    return true;
}

bool decoder_cut(decoder *d, const decoder_step *s, job *j) {
    const long num_wanted = s->num_wanted > 0 ? s->num_wanted : 0;
    if (!grow(&d->tiles, (s->rows + num_wanted) * sizeof(tile))) return false;
    cut(d, s, d->tiles.data, j);
    cut_wanted(s, (tile *)d->tiles.data + j->num_tiles);
    j->tiles = d->tiles.data;
    return !s->num_adapted || prepare_adapted(d, s, j);
}
