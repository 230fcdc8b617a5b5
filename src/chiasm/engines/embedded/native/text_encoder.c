#include "text_encoder_parts.h"

text_encoder *text_encoder_new(const kernels *k, const text_shape *shape, int threads) {
    text_encoder *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->k = k;
    t->shape = *shape;
    t->layers = calloc(shape->num_layers, sizeof(text_layer));
    t->team = t->layers ? team_new(threads) : NULL;
    if (t->team) return t;
    text_encoder_free(t);
    return NULL;
}

static void free_norm(text_norm *n) {
    free(n->weight);
    free(n->bias);
}

static void free_layer(text_layer *l) {
    linear *linears[] = {&l->qkv, &l->out, &l->up, &l->down};
    for (int i = 0; i < 4; i++) linear_free(linears[i]);
    free_norm(&l->attention_norm);
    free_norm(&l->norm);
}

void text_encoder_free(text_encoder *t) {
    if (!t) return;
    team_free(t->team); /* first: its threads look at the rest */
    for (long i = 0; t->layers && i < t->shape.num_layers; i++) free_layer(&t->layers[i]);
    buffer *buffers[] = {&t->x, &t->queries, &t->keys, &t->values, &t->attended, &t->places, &t->blocks, &t->scratch};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) free(buffers[i]->data);
    free_norm(&t->norm);
    free(t->layers);
    free(t);
}

const text_shape *text_encoder_get_shape(const text_encoder *t) { return &t->shape; }

static bool copy_norm(const float *weight, const float *bias, long width, text_norm *n) {
    return copy_floats(weight, width, &n->weight) && copy_floats(bias, width, &n->bias);
}

bool text_encoder_set_tables(text_encoder *t, const text_tables *w) {
    t->words = w->words;
    t->positions = w->positions;
    t->types = w->types;
    return copy_norm(w->norm, w->norm_bias, t->shape.hidden, &t->norm);
}

bool text_encoder_set_layer(text_encoder *t, long number, const text_layer_weights *w) {
    const text_shape *s = &t->shape;
    const kernels *k = t->k;
    text_layer *l = &t->layers[number];
    const long width = attended_width(s);
    return copy_norm(w->attention_norm, w->attention_norm_bias, s->hidden, &l->attention_norm) &&
           copy_norm(w->norm, w->norm_bias, s->hidden, &l->norm) &&
           linear_make(k, w->qkv, w->qkv_bias, 3 * width, s->hidden, false, STORE, &l->qkv) &&
           linear_make(k, w->out, w->out_bias, s->hidden, width, false, ADD, &l->out) &&
           linear_make(k, w->up, w->up_bias, s->intermediate, s->hidden, false, s->activation, &l->up) &&
           linear_make(k, w->down, w->down_bias, s->hidden, s->intermediate, false, ADD, &l->down);
}
