#include "linear.h"

#include "memory.h"

long linear_panels(const kernels *k, const linear *l) { return divide_up(l->outputs, k->panel_outputs(l->epilogue)); }

void linear_free(linear *l) {
    free(l->weights);
    free(l->bias);
    *l = (linear){0};
}

bool linear_make(
    const kernels *k, const void *weights, const float *bias, long outputs, long inputs, bool is_bf16, epilogue epilogue,
    linear *l
) {
    linear_free(l);
    *l = (linear){.inputs = inputs, .outputs = outputs, .is_bf16 = is_bf16, .epilogue = epilogue};
    const size_t columns = linear_panels(k, l) * 2 * k->lanes;
    l->weights = allocate(columns * inputs * (is_bf16 ? 2 : 4));
    if (!l->weights) return false;
    k->pack(weights, outputs, inputs, is_bf16, epilogue, l->weights);
    if (!bias) return true;
    l->bias = allocate(columns * sizeof(float));
    if (l->bias) k->pack(bias, outputs, 1, false, epilogue, l->bias);
    return l->bias != NULL;
}
