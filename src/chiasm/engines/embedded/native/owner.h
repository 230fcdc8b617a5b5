/* A Python object that owns something of C's, which one call at a time uses while others run Python. */
#ifndef CHIASM_OWNER_H
#define CHIASM_OWNER_H

#include "module.h"

#include <stdbool.h>

#include "kernels.h"

typedef struct {
    const char *name;             /* for messages */
    void (*release)(void *owned); /* joins threads; without the GIL, if it can be */
} ownership;

typedef struct {
    PyObject_HEAD
    const ownership *how;
    void *owned; /* NULL when closed */
    const kernels *kernels;
    bool is_busy; /* a call is under way without the GIL */
} owner;

/* Takes `owned`; NULL with an exception, from `errno` where there is nothing to own. */
PyObject *owner_new(PyTypeObject *type, const ownership *how, void *owned, const kernels *k);
void owner_free(PyObject *self);

/* What it owns, for a call that ends with `owner_end`; NULL with an exception when it is closed or in use. */
void *owner_begin(PyObject *self);

/* None, or NULL with an exception. */
PyObject *owner_end(PyObject *self, bool has_memory);

PyObject *owner_close(PyObject *self, PyObject *nothing);

extern PyGetSetDef owner_attributes[];

#endif
