/* Low-rank additions to a decoder's projections, chosen by row: y += expand(shrink(x)). */
#ifndef CHIASM_ADAPTER_H
#define CHIASM_ADAPTER_H

#include "decoder.h"

#include <stdint.h>

enum { QKV, OUT, GATE_UP, DOWN, NUM_PARTS };

/* `expand` has the panels of the projection that it adds to. No weights: nothing is added. */
typedef struct {
    linear shrink, expand;
} low_rank;

typedef struct adapter {
    low_rank (*layers)[NUM_PARTS];
    long num_layers, most_rank;
    bool touches[NUM_PARTS]; /* in any layer */
    size_t bytes;
} adapter;

/* NULL when memory is refused. */
adapter *adapter_new(long num_layers);
void adapter_free(adapter *a);

/* Pack `shrink` [rank, inputs] and `expand` [outputs, rank] (for GATE_UP: of both, stacked), float32, for a part of a
 * layer that has none yet. False when memory is refused; the adapter is then only good for `adapter_free`. */
bool adapter_set(
    adapter *a, const kernels *k, const decoder_shape *shape, long layer, int part, long rank, const float *shrink,
    const float *expand
);

#endif
