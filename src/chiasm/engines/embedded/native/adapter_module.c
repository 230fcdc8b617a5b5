/* Python's side of adapters, `NativeAdapter`: made by a decoder, filled once, then only read. */
#include "adapter_module.h"

typedef struct {
    PyObject_HEAD
    PyObject *owner;
    const kernels *kernels;
    decoder_shape shape;
    adapter *adapter;
} object;

static PyTypeObject *adapter_type; /* of this process, for checks */

PyObject *new_adapter(PyObject *owner, const kernels *k, const decoder_shape *shape) {
    allocfunc allocate = (allocfunc)PyType_GetSlot(adapter_type, Py_tp_alloc);
    object *self = (object *)allocate(adapter_type, 0);
    if (!self) return NULL;
    Py_INCREF(owner);
    self->owner = owner;
    self->kernels = k;
    self->shape = *shape;
    self->adapter = adapter_new(shape->num_layers);
    if (self->adapter) return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return PyErr_NoMemory();
}

const adapter *adapter_of(PyObject *o, PyObject *owner) {
    if (PyObject_TypeCheck(o, adapter_type) && ((object *)o)->owner == owner) return ((object *)o)->adapter;
    PyErr_SetString(PyExc_ValueError, "the adapter was not made by this decoder");
    return NULL;
}

static void object_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    adapter_free(((object *)self)->adapter);
    Py_XDECREF(((object *)self)->owner);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *py_set(PyObject *self, PyObject *args) {
    object *o = (object *)self;
    long layer, rank;
    int part;
    address shrink, expand;
    if (!PyArg_ParseTuple(args, "lilKK", &layer, &part, &rank, &shrink, &expand)) return NULL;
    if (layer < 0 || layer >= o->shape.num_layers || part < 0 || part >= NUM_PARTS || rank < 1)
        return PyErr_Format(PyExc_ValueError, "no part %d of layer %ld, or no rank %ld", part, layer, rank);
    if (o->adapter->layers[layer][part].shrink.weights)
        return PyErr_Format(PyExc_ValueError, "part %d of layer %ld is set already", part, layer);
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = adapter_set(o->adapter, o->kernels, &o->shape, layer, part, rank, pointer(shrink), pointer(expand));
    Py_END_ALLOW_THREADS
    if (!is_done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *get_bytes(PyObject *self, void *nothing) {
    (void)nothing;
    return PyLong_FromSize_t(((object *)self)->adapter->bytes);
}

static PyMethodDef methods[] = {
    {"set", py_set, METH_VARARGS, "set(layer, part, rank, shrink, expand): part 0 qkv, 1 out, 2 gate_up, 3 down"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"num_bytes", get_bytes, NULL, "Memory of its weights.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, object_free}, {Py_tp_methods, methods}, {Py_tp_getset, attributes},
    {Py_tp_doc, "Made by `NativeDecoder.adapter`."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "chiasm.engines.embedded.decoder._native.NativeAdapter",
    .basicsize = sizeof(object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

PyObject *new_adapter_type(void) {
    PyObject *type = PyType_FromSpec(&spec);
    adapter_type = (PyTypeObject *)type;
    return type;
}
