#include "tower_parts.h"

tower *tower_new(const kernels *k, const tower_shape *shape, int threads) {
    tower *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->k = k;
    t->shape = *shape;
    t->layers = calloc(shape->num_layers, sizeof(tower_layer));
    t->mergers = calloc(2 + shape->num_levels, sizeof(merger)); /* never of nothing */
    t->team = t->layers && t->mergers ? team_new(threads) : NULL;
    if (t->team) return t;
    tower_free(t);
    return NULL;
}

static void free_norm(norm *n) {
    free(n->weight);
    free(n->bias);
}

static void free_layer(tower_layer *l) {
    free_norm(&l->norm1);
    free_norm(&l->norm2);
    linear *linears[] = {&l->qkv, &l->out, &l->up, &l->down};
    for (int i = 0; i < 4; i++) linear_free(linears[i]);
}

static void free_merger(merger *m) {
    free_norm(&m->norm);
    linear_free(&m->up);
    linear_free(&m->down);
}

void tower_free(tower *t) {
    if (!t) return;
    team_free(t->team); /* first: its threads look at the rest */
    for (long i = 0; t->layers && i < t->shape.num_layers; i++) free_layer(&t->layers[i]);
    for (long i = 0; t->mergers && i <= t->shape.num_levels; i++) free_merger(&t->mergers[i]);
    buffer *buffers[] = {&t->x,      &t->queries, &t->keys,   &t->values, &t->attended,
                         &t->merged, &t->active,  &t->places, &t->blocks, &t->stages, &t->scratch};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) free(buffers[i]->data);
    linear_free(&t->patches);
    free(t->positions);
    free(t->layers);
    free(t->mergers);
    free(t);
}

const tower_shape *tower_get_shape(const tower *t) { return &t->shape; }

static bool make(
    const tower *t, const void *weights, const float *bias, long outputs, long inputs, epilogue epilogue, linear *l
) {
    return linear_make(t->k, weights, bias, outputs, inputs, t->shape.is_bf16, epilogue, l);
}

static bool copy_norm(const float *weight, const float *bias, long width, norm *n) {
    return copy_floats(weight, width, &n->weight) && copy_floats(bias, width, &n->bias);
}

bool tower_set_embedding(tower *t, const void *weights, const float *bias, const float *positions) {
    const tower_shape *s = &t->shape;
    return make(t, weights, bias, s->hidden, s->channels * s->patch_pixels, STORE, &t->patches) &&
           copy_floats(positions, s->position_side * s->position_side * s->hidden, &t->positions);
}

bool tower_set_layer(tower *t, long number, const tower_layer_weights *w) {
    const tower_shape *s = &t->shape;
    tower_layer *l = &t->layers[number];
    l->is_windowed = w->is_windowed;
    return copy_norm(w->norm1, w->norm1_bias, s->hidden, &l->norm1) &&
           copy_norm(w->norm2, w->norm2_bias, s->hidden, &l->norm2) &&
           make(t, w->qkv, w->qkv_bias, 3 * attended_width(s), s->hidden, STORE, &l->qkv) &&
           make(t, w->out, w->out_bias, s->hidden, attended_width(s), ADD, &l->out) &&
           make(t, w->up, w->up_bias, s->intermediate, s->hidden, s->activation, &l->up) &&
           make(t, w->down, w->down_bias, s->hidden, s->intermediate, ADD, &l->down);
}

bool tower_set_merger(tower *t, long number, const merger_weights *w) {
    const tower_shape *s = &t->shape;
    merger *m = &t->mergers[number];
    const long width = square(s) * s->hidden;
    m->after = w->after;
    m->is_norm_of_merged = w->is_norm_of_merged;
    return copy_norm(w->norm, w->norm_bias, w->is_norm_of_merged ? width : s->hidden, &m->norm) &&
           make(t, w->up, w->up_bias, width, width, GELU, &m->up) &&
           make(t, w->down, w->down_bias, s->out_hidden, width, STORE, &m->down);
}
