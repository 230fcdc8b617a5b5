#include "adapter.h"

#include "linear.h"
#include "memory.h"

adapter *adapter_new(long num_layers) {
    adapter *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    a->num_layers = num_layers;
    a->layers = calloc(num_layers, sizeof *a->layers);
    if (a->layers) return a;
    free(a);
    return NULL;
}

void adapter_free(adapter *a) {
    if (!a) return;
    for (long i = 0; i < a->num_layers; i++)
        for (int part = 0; part < NUM_PARTS; part++) {
            linear_free(&a->layers[i][part].shrink);
            linear_free(&a->layers[i][part].expand);
        }
    free(a->layers);
    free(a);
}

static long inputs_of(const decoder_shape *s, int part) {
    return part == OUT ? decoder_attended_width(s) : part == DOWN ? s->intermediate : s->hidden;
}

static long outputs_of(const decoder_shape *s, int part) {
    return part == QKV ? decoder_qkv_width(s) : part == GATE_UP ? s->intermediate : s->hidden;
}

static size_t bytes_of(const kernels *k, const linear *l) {
    return (size_t)linear_panels(k, l) * 2 * k->lanes * l->inputs * sizeof(float);
}

bool adapter_set(
    adapter *a, const kernels *k, const decoder_shape *shape, long layer, int part, long rank, const float *shrink,
    const float *expand
) {
    low_rank *l = &a->layers[layer][part];
    const long inputs = inputs_of(shape, part), outputs = outputs_of(shape, part);
    if (!linear_make(k, shrink, NULL, rank, inputs, false, STORE, &l->shrink)) return false;
    if (!linear_make(k, expand, NULL, outputs, rank, false, part == GATE_UP ? SWIGLU : STORE, &l->expand)) return false;
    if (part == GATE_UP) l->expand.outputs = linear_panels(k, &l->expand) * 2 * k->lanes; /* gates beside what they gate */
    l->expand.epilogue = ADD;
    a->bytes += bytes_of(k, &l->shrink) + bytes_of(k, &l->expand);
    a->touches[part] = true;
    if (rank > a->most_rank) a->most_rank = rank;
    return true;
}
