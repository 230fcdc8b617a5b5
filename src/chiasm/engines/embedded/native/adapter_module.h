/* Python's side of adapters. */
#ifndef CHIASM_ADAPTER_MODULE_H
#define CHIASM_ADAPTER_MODULE_H

#include "adapter.h"
#include "module.h"

/* A new reference, or NULL with an exception. */
PyObject *new_adapter_type(void);

/* A new reference, or NULL with an exception. It keeps `owner`, the decoder, alive. */
PyObject *new_adapter(PyObject *owner, const kernels *k, const decoder_shape *shape);

/* Borrowed; NULL with an exception unless `o` is an adapter of `owner`. */
const adapter *adapter_of(PyObject *o, PyObject *owner);

#endif
