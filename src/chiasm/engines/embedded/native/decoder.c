#include "decoder.h"

#include "linear.h"
#include "memory.h"

/* Queries of one key head that go over its keys together. */
#define QUERIES_AT_ONCE 16

typedef struct {
    float *input_norm, *post_norm, *q_norm, *k_norm;
    linear qkv, out, gate_up, down;
} layer;

struct decoder {
    const kernels *k;
    decoder_shape shape;
    team *team;
    layer *layers;
    float *final_norm;
    linear head;
    buffer norm, qkv, attended, active, scores, tiles; /* scratch of a step; grows, never shrinks */
};

/* Consecutive tokens of a run that are attended together: rows row .. row + count - 1; the result goes to rows from `out`
 * on. */
typedef struct {
    long row, slot, start, count, out;
} tile;

/* What a step's phases read. Threads have copies; one that is late by a step finds nothing to do with its copy. */
typedef struct {
    const decoder *d;
    decoder_step step;
    const tile *tiles; /* after those of all rows, one for each wanted row */
    long num_tiles, most_keys;
    size_t scores_per_thread;
    float *norm, *qkv, *attended, *active, *scores;
    const layer *layer;
    long number; /* of the layer */
    float *logits;
} job;
_Static_assert(sizeof(job) <= MOST_JOB_BYTES, "a job fits into the team's copy");

/* ---- memory ---- */

static bool make_linear(
    const decoder *d, const void *weights, const float *bias, long outputs, long inputs, epilogue epilogue, linear *l
) {
    return linear_make(d->k, weights, bias, outputs, inputs, d->shape.is_bf16, epilogue, l);
}

decoder *decoder_new(const kernels *k, const decoder_shape *shape, int threads) {
    decoder *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->k = k;
    d->shape = *shape;
    d->layers = calloc(shape->num_layers, sizeof(layer));
    d->team = d->layers ? team_new(threads) : NULL;
    if (d->team) return d;
    decoder_free(d);
    return NULL;
}

void decoder_free(decoder *d) {
    if (!d) return;
    team_free(d->team); /* first: its threads look at the rest */
    for (long i = 0; d->layers && i < d->shape.num_layers; i++) {
        layer *l = &d->layers[i];
        float *norms[] = {l->input_norm, l->post_norm, l->q_norm, l->k_norm};
        linear *linears[] = {&l->qkv, &l->out, &l->gate_up, &l->down};
        for (int n = 0; n < 4; n++) {
            free(norms[n]);
            linear_free(linears[n]);
        }
    }
    buffer *buffers[] = {&d->norm, &d->qkv, &d->attended, &d->active, &d->scores, &d->tiles};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) free(buffers[i]->data);
    linear_free(&d->head);
    free(d->final_norm);
    free(d->layers);
    free(d);
}

const decoder_shape *decoder_get_shape(const decoder *d) { return &d->shape; }

static long attended_width(const decoder_shape *s) { return s->heads * s->head_dim; }
static long qkv_width(const decoder_shape *s) { return (s->heads + 2 * s->kv_heads) * s->head_dim; }

bool decoder_set_layer(decoder *d, long number, const layer_weights *w) {
    const decoder_shape *s = &d->shape;
    layer *l = &d->layers[number];
    return copy_floats(w->input_norm, s->hidden, &l->input_norm) &&
           copy_floats(w->post_norm, s->hidden, &l->post_norm) &&
           copy_floats(w->q_norm, s->head_dim, &l->q_norm) && copy_floats(w->k_norm, s->head_dim, &l->k_norm) &&
           make_linear(d, w->qkv, w->qkv_bias, qkv_width(s), s->hidden, STORE, &l->qkv) &&
           make_linear(d, w->out, w->out_bias, s->hidden, attended_width(s), ADD, &l->out) &&
           make_linear(d, w->gate_up, w->gate_up_bias, s->intermediate, s->hidden, SWIGLU, &l->gate_up) &&
           make_linear(d, w->down, w->down_bias, s->hidden, s->intermediate, ADD, &l->down);
}

bool decoder_set_head(decoder *d, const float *norm, const void *weights) {
    return copy_floats(norm, d->shape.hidden, &d->final_norm) &&
           make_linear(d, weights, NULL, d->shape.vocab, d->shape.hidden, STORE, &d->head);
}

/* ---- phases; each does a range of its units ---- */

static void norm_rows(const job *j, const float *x, const float *weight, long first, long last) {
    const long width = j->d->shape.hidden;
    for (long row = first; row < last; row++)
        j->d->k->norm(x + row * width, weight, width, j->d->shape.eps, j->norm + row * width);
}

static void input_norm(const job *j, long first, long last, int thread) {
    (void)thread;
    norm_rows(j, j->step.x, j->layer->input_norm, first, last);
}

static void post_norm(const job *j, long first, long last, int thread) {
    (void)thread;
    norm_rows(j, j->step.x, j->layer->post_norm, first, last);
}

static void final_norm(const job *j, long first, long last, int thread) {
    (void)thread;
    norm_rows(j, j->step.x, j->d->final_norm, first, last);
}

static void project(const job *j, long first, long last, int thread) {
    (void)thread;
    j->d->k->apply(&j->layer->qkv, j->norm, j->step.rows, first, last, j->qkv);
}

static void add_attended(const job *j, long first, long last, int thread) {
    (void)thread;
    j->d->k->apply(&j->layer->out, j->attended, j->step.rows, first, last, j->step.x);
}

static void gate_up(const job *j, long first, long last, int thread) {
    (void)thread;
    j->d->k->apply(&j->layer->gate_up, j->norm, j->step.rows, first, last, j->active);
}

static void add_down(const job *j, long first, long last, int thread) {
    (void)thread;
    j->d->k->apply(&j->layer->down, j->active, j->step.rows, first, last, j->step.x);
}

static void head(const job *j, long first, long last, int thread) {
    (void)thread;
    j->d->k->apply(&j->d->head, j->norm, j->step.rows, first, last, j->logits);
}

/* Keys of one key head of a slot; its values come `values_after` floats later. */
static float *keys_of(const job *j, long slot, long kv_head) {
    const decoder_shape *s = &j->d->shape;
    const size_t lane = (j->number * j->step.slots + slot) * 2 * s->kv_heads + kv_head;
    return j->step.kv + lane * j->step.max_tokens * s->head_dim;
}

static size_t values_after(const job *j) {
    return (size_t)j->d->shape.kv_heads * j->step.max_tokens * j->d->shape.head_dim;
}

/* Normalise and rotate the queries and keys of a row, and keep its keys and values. */
static void place_row(const job *j, long row, long slot, long position) {
    const decoder_shape *s = &j->d->shape;
    const long dim = s->head_dim;
    float *heads = j->qkv + row * qkv_width(s);
    for (long h = 0; h < s->heads + s->kv_heads; h++) {
        const float *weight = h < s->heads ? j->layer->q_norm : j->layer->k_norm;
        float *x = heads + h * dim;
        if (weight) j->d->k->norm(x, weight, dim, s->eps, x);
        j->d->k->rotate(x, j->step.cosine + row * dim, j->step.sine + row * dim + dim / 2, dim);
    }
    for (long h = 0; h < s->kv_heads; h++) {
        float *key = keys_of(j, slot, h) + position * dim;
        memcpy(key, heads + (s->heads + h) * dim, dim * sizeof(float));
        memcpy(key + values_after(j), heads + (s->heads + s->kv_heads + h) * dim, dim * sizeof(float));
    }
}

static void place(const job *j, long first, long last, int thread) {
    (void)thread;
    for (const tile *t = j->tiles + first; t < j->tiles + last; t++)
        for (long i = 0; i < t->count; i++) place_row(j, t->row + i, t->slot, t->start + i);
}

/* A unit is a tile and a key head. */
static void attend(const job *j, long first, long last, int thread) {
    const decoder_shape *s = &j->d->shape;
    const long group = s->heads / s->kv_heads;
    for (long unit = first; unit < last; unit++) {
        const tile *t = j->tiles + unit / s->kv_heads;
        const long kv_head = unit % s->kv_heads, column = kv_head * group * s->head_dim;
        const float *keys = keys_of(j, t->slot, kv_head);
        const attention a = {
            .queries = j->qkv + t->row * qkv_width(s) + column,
            .out = j->attended + t->out * attended_width(s) + column,
            .keys = keys,
            .values = keys + values_after(j),
            .scores = j->scores + thread * j->scores_per_thread,
            .query_stride = qkv_width(s),
            .out_stride = attended_width(s),
            .rows = t->count,
            .heads = group,
            .dim = s->head_dim,
            .context = t->start + 1,
            .scale = s->scale,
        };
        j->d->k->attend(&a);
    }
}

static void keep(const job *j, long first, long last, int thread) {
    (void)thread;
    const long width = j->d->shape.hidden;
    for (long i = first; i < last; i++)
        memcpy(j->step.kept + i * width, j->step.x + j->step.wanted[i] * width, width * sizeof(float));
}

static void add_deep(const job *j, long first, long last, int thread) {
    (void)thread;
    const long width = j->d->shape.hidden;
    for (long i = first; i < last; i++) {
        const float *from = j->step.deep + (j->number * j->step.num_deep + i) * width;
        float *to = j->step.x + j->step.deep_rows[i] * width;
        for (long column = 0; column < width; column++) to[column] += from[column];
    }
}

/* ---- the phases' order ---- */

typedef void (*phase)(const job *j, long first, long last, int thread);

typedef struct {
    const job *job;
    phase phase;
} job_phase;

static void run_phase(const void *context, long first, long last, int thread) {
    const job_phase *p = context;
    p->phase(p->job, first, last, thread);
}

static void share(member *me, const job *j, phase phase, long total, long unit) {
    const job_phase p = {j, phase};
    team_deal(me, total, unit, run_phase, &p);
}

static void share_panels(member *me, const job *j, phase phase, const linear *l) {
    share(me, j, phase, linear_panels(j->d->k, l), 4);
}

/* From here on, go on with the wanted rows alone: the last layer has all keys and values. */
static void drop_unwanted(member *me, job *j) {
    share(me, j, keep, j->step.num_wanted, 1);
    j->tiles += j->num_tiles;
    j->num_tiles = j->step.rows = j->step.num_wanted;
    j->step.x = j->step.kept;
}

static void run_layers(const void *shared, member *me) {
    job j = *(const job *)shared;
    const decoder *d = j.d;
    for (j.number = 0; j.number < d->shape.num_layers; j.number++) {
        const layer *l = j.layer = &d->layers[j.number];
        share(me, &j, input_norm, j.step.rows, 1);
        share_panels(me, &j, project, &l->qkv);
        share(me, &j, place, j.num_tiles, 1);
        if (j.step.num_wanted >= 0 && j.number == d->shape.num_layers - 1) drop_unwanted(me, &j);
        share(me, &j, attend, j.num_tiles * d->shape.kv_heads, 1);
        share_panels(me, &j, add_attended, &l->out);
        share(me, &j, post_norm, j.step.rows, 1);
        share_panels(me, &j, gate_up, &l->gate_up);
        share_panels(me, &j, add_down, &l->down);
        if (j.number < j.step.num_levels) share(me, &j, add_deep, j.step.num_deep, 1);
    }
}

static void run_head(const void *shared, member *me) {
    const job *j = shared;
    share(me, j, final_norm, j->step.rows, 1);
    share_panels(me, j, head, &j->d->head);
}

/* ---- a step ---- */

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
    return NULL;
}

/* Products per token, without attention's. */
static double products(const decoder_shape *s) {
    return (double)s->num_layers * s->hidden * (qkv_width(s) + attended_width(s) + 3 * s->intermediate);
}

static void run(const decoder *d, void (*body)(const void *, member *), const job *j, double products) {
    member alone = {0};
    if (products < d->shape.alone_products) body(j, &alone);
    else team_run(d->team, body, j, sizeof *j);
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

bool decoder_run(decoder *d, const decoder_step *s) {
    const decoder_shape *shape = &d->shape;
    const size_t row = s->rows * sizeof(float);
    job j = {.d = d, .step = *s};
    const long num_wanted = s->num_wanted > 0 ? s->num_wanted : 0;
    if (!grow(&d->tiles, (s->rows + num_wanted) * sizeof(tile))) return false;
    cut(d, s, d->tiles.data, &j);
    cut_wanted(s, (tile *)d->tiles.data + j.num_tiles);
    if (!grow(&d->norm, row * shape->hidden) || !grow(&d->qkv, row * qkv_width(shape)) ||
        !grow(&d->attended, row * attended_width(shape)) || !grow(&d->active, row * shape->intermediate) ||
        !grow(&d->scores, j.scores_per_thread * team_threads(d->team) * sizeof(float)))
        return false;
    j.tiles = d->tiles.data;
    j.norm = d->norm.data;
    j.qkv = d->qkv.data;
    j.attended = d->attended.data;
    j.active = d->active.data;
    j.scores = d->scores.data;
    run(d, run_layers, &j, s->rows * (products(shape) + 2.0 * shape->num_layers * attended_width(shape) * j.most_keys));
    return true;
}

bool decoder_logits(decoder *d, const float *x, long rows, float *out) {
    if (!grow(&d->norm, rows * d->shape.hidden * sizeof(float))) return false;
    job j = {.d = d, .norm = d->norm.data, .logits = out};
    j.step.x = (float *)x; /* only read */
    j.step.rows = rows;
    run(d, run_head, &j, (double)rows * d->shape.hidden * d->shape.vocab);
    return true;
}
