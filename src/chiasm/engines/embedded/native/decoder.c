#include "decoder.h"

#include "decoder_parts.h"
#include "linear.h"

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
    buffer *buffers[] = {&d->norm, &d->qkv, &d->attended, &d->active,
                         &d->scores, &d->tiles, &d->low, &d->raw, &d->adapted};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) free(buffers[i]->data);
    linear_free(&d->head);
    free(d->final_norm);
    free(d->layers);
    free(d);
}

const decoder_shape *decoder_get_shape(const decoder *d) { return &d->shape; }

bool decoder_set_layer(decoder *d, long number, const layer_weights *w) {
    const decoder_shape *s = &d->shape;
    layer *l = &d->layers[number];
    return copy_floats(w->input_norm, s->hidden, &l->input_norm) &&
           copy_floats(w->post_norm, s->hidden, &l->post_norm) &&
           copy_floats(w->q_norm, s->head_dim, &l->q_norm) && copy_floats(w->k_norm, s->head_dim, &l->k_norm) &&
           make_linear(d, w->qkv, w->qkv_bias, decoder_qkv_width(s), s->hidden, STORE, &l->qkv) &&
           make_linear(d, w->out, w->out_bias, s->hidden, decoder_attended_width(s), ADD, &l->out) &&
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

/* What rows with adapters add to a part's result. Unit: spans of rows. */
static void shrink(const job *j, long first, long last, int thread) {
    (void)thread;
    const float *const inputs[] = {[QKV] = j->norm, [OUT] = j->attended, [GATE_UP] = j->norm, [DOWN] = j->active};
    const kernels *k = j->d->k;
    for (const adapted_rows *a = j->adapted + first; a < j->adapted + last; a++) {
        const linear *l = &a->adapter->layers[j->number][j->part].shrink;
        if (!l->weights) continue;
        const float *x = inputs[j->part] + a->row * l->inputs;
        k->apply(l, x, a->count, 0, linear_panels(k, l), j->low + a->row * j->most_rank);
    }
}

static void expand(const job *j, int part, long first, long last, float *out) {
    for (const adapted_rows *a = j->adapted; j->touches[part] && a < j->adapted + j->num_adapted; a++) {
        const linear *l = &a->adapter->layers[j->number][part].expand;
        if (!l->weights) continue;
        j->d->k->apply(l, j->low + a->row * j->most_rank, a->count, first, last, out + a->row * l->outputs);
    }
}

static void project(const job *j, long first, long last, int thread) {
    (void)thread;
    j->d->k->apply(&j->layer->qkv, j->norm, j->step.rows, first, last, j->qkv);
    expand(j, QKV, first, last, j->qkv);
}

static void add_attended(const job *j, long first, long last, int thread) {
    (void)thread;
    j->d->k->apply(&j->layer->out, j->attended, j->step.rows, first, last, j->step.x);
    expand(j, OUT, first, last, j->step.x);
}

static void gate_up(const job *j, long first, long last, int thread) {
    (void)thread;
    const kernels *k = j->d->k;
    linear l = j->layer->gate_up;
    if (!j->touches[GATE_UP]) {
        k->apply(&l, j->norm, j->step.rows, first, last, j->active);
        return;
    }
    const long panels = linear_panels(k, &l), outputs = l.outputs; /* adapters add to gates and ups before they meet */
    l.epilogue = STORE;
    l.outputs = panels * 2 * k->lanes;
    k->apply(&l, j->norm, j->step.rows, first, last, j->raw);
    expand(j, GATE_UP, first, last, j->raw);
    k->swiglu(j->raw, j->step.rows, panels, first, last, outputs, j->active);
}

static void add_down(const job *j, long first, long last, int thread) {
    (void)thread;
    j->d->k->apply(&j->layer->down, j->active, j->step.rows, first, last, j->step.x);
    expand(j, DOWN, first, last, j->step.x);
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
    float *heads = j->qkv + row * decoder_qkv_width(s);
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
            .queries = j->qkv + t->row * decoder_qkv_width(s) + column,
            .out = j->attended + t->out * decoder_attended_width(s) + column,
            .keys = keys,
            .values = keys + values_after(j),
            .scores = j->scores + thread * j->scores_per_thread,
            .query_stride = decoder_qkv_width(s),
            .out_stride = decoder_attended_width(s),
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

static void share_shrink(member *me, job *j, int part) {
    j->part = part;
    if (j->touches[part]) share(me, j, shrink, j->num_adapted, 1);
}

/* From here on, go on with the wanted rows alone: the last layer has all keys and values. */
static void drop_unwanted(member *me, job *j) {
    share(me, j, keep, j->step.num_wanted, 1);
    j->tiles += j->num_tiles;
    j->num_tiles = j->step.rows = j->step.num_wanted;
    j->step.x = j->step.kept;
    j->adapted += j->num_adapted;
    j->num_adapted = j->num_wanted_adapted;
}

static void run_layers(const void *shared, member *me) {
    job j = *(const job *)shared;
    const decoder *d = j.d;
    for (j.number = 0; j.number < d->shape.num_layers; j.number++) {
        const layer *l = j.layer = &d->layers[j.number];
        share(me, &j, input_norm, j.step.rows, 1);
        share_shrink(me, &j, QKV);
        share_panels(me, &j, project, &l->qkv);
        share(me, &j, place, j.num_tiles, 1);
        if (j.step.num_wanted >= 0 && j.number == d->shape.num_layers - 1) drop_unwanted(me, &j);
        share(me, &j, attend, j.num_tiles * d->shape.kv_heads, 1);
        share_shrink(me, &j, OUT);
        share_panels(me, &j, add_attended, &l->out);
        share(me, &j, post_norm, j.step.rows, 1);
        share_shrink(me, &j, GATE_UP);
        share_panels(me, &j, gate_up, &l->gate_up);
        share_shrink(me, &j, DOWN);
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

/* Products per token, without attention's. */
static double products(const decoder_shape *s) {
    return (double)s->num_layers * s->hidden * (decoder_qkv_width(s) + decoder_attended_width(s) + 3 * s->intermediate);
}

static void run(const decoder *d, void (*body)(const void *, member *), const job *j, double products) {
    member alone = {0};
    if (products < d->shape.alone_products) body(j, &alone);
    else team_run(d->team, body, j, sizeof *j);
}

bool decoder_run(decoder *d, const decoder_step *s) {
    const decoder_shape *shape = &d->shape;
    const size_t row = s->rows * sizeof(float);
    job j = {.d = d, .step = *s};
    if (!decoder_cut(d, s, &j)) return false;
    if (!grow(&d->norm, row * shape->hidden) || !grow(&d->qkv, row * decoder_qkv_width(shape)) ||
        !grow(&d->attended, row * decoder_attended_width(shape)) || !grow(&d->active, row * shape->intermediate) ||
        !grow(&d->scores, j.scores_per_thread * team_threads(d->team) * sizeof(float)))
        return false;
    j.norm = d->norm.data;
    j.qkv = d->qkv.data;
    j.attended = d->attended.data;
    j.active = d->active.data;
    j.scores = d->scores.data;
    run(d, run_layers, &j, s->rows * (products(shape) + 2.0 * shape->num_layers * decoder_attended_width(shape) * j.most_keys));
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
