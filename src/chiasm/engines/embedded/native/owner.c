#include "owner.h"

#include <errno.h>

PyObject *owner_new(PyTypeObject *type, const ownership *how, void *owned, const kernels *k) {
    if (!owned) return errno == ENOMEM ? PyErr_NoMemory() : PyErr_SetFromErrno(PyExc_OSError);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    owner *self = (owner *)allocate(type, 0);
    if (!self) {
        how->release(owned);
        return NULL;
    }
    self->how = how;
    self->owned = owned;
    self->kernels = k;
    return (PyObject *)self;
}

void owner_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    const owner *o = (owner *)self;
    if (o->owned) o->how->release(o->owned);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

void *owner_begin(PyObject *self) {
    owner *o = (owner *)self;
    if (!o->owned) return PyErr_Format(PyExc_ValueError, "the %s is closed", o->how->name);
    if (o->is_busy) return PyErr_Format(PyExc_RuntimeError, "the %s is in use by another thread", o->how->name);
    o->is_busy = true;
    return o->owned;
}

PyObject *owner_end(PyObject *self, bool has_memory) {
    ((owner *)self)->is_busy = false;
    if (!has_memory) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject *owner_close(PyObject *self, PyObject *nothing) {
    (void)nothing;
    owner *o = (owner *)self;
    if (!o->owned) Py_RETURN_NONE;
    void *owned = owner_begin(self);
    if (!owned) return NULL;
    o->owned = NULL;
    Py_BEGIN_ALLOW_THREADS
    o->how->release(owned);
    Py_END_ALLOW_THREADS
    return owner_end(self, true);
}

static PyObject *get_kernels(PyObject *self, void *nothing) {
    (void)nothing;
    return PyUnicode_FromString(((owner *)self)->kernels->name);
}

PyGetSetDef owner_attributes[] = {
    {"kernels", get_kernels, NULL, "Name of the instruction set in use.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
