/* Linear maps with packed weights. */
#ifndef CHIASM_LINEAR_H
#define CHIASM_LINEAR_H

#include "kernels.h"

/* Pack [outputs, inputs] and [outputs] (or NULL) in place of what `l` held; for SWIGLU there are twice as many rows.
 * False when memory is refused. */
bool linear_make(
    const kernels *k, const void *weights, const float *bias, long outputs, long inputs, bool is_bf16, epilogue epilogue,
    linear *l
);
void linear_free(linear *l);

/* How many panels `apply` can be asked for. */
long linear_panels(const kernels *k, const linear *l);

#endif
