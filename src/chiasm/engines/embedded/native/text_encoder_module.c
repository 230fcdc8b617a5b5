/* Python's side of the text encoder, as tower_module.c is the vision tower's: `NativeTextEncoder`. */
#include "owner.h"

#include <string.h>

#include "text_encoder.h"

static void release(void *owned) { text_encoder_free(owned); }

static const ownership how = {"encoder", release};

static bool find_activation(const char *name, epilogue *activation) {
    if (!strcmp(name, "gelu")) *activation = GELU;
    else if (!strcmp(name, "gelu_tanh")) *activation = GELU_TANH;
    else return false;
    return true;
}

static const char *problem_of(const text_shape *s, int threads) {
    if (s->num_layers < 1 || s->hidden < 1 || s->intermediate < 1 || s->heads < 1 || s->head_dim < 1)
        return "sizes must be positive";
    if (s->num_words < 1 || s->num_positions < 1 || s->num_types < 0) return "tables must have rows";
    if (threads < 1 || threads > 256) return "threads must be 1 to 256";
    return NULL;
}

static PyObject *object_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    (void)named;
    const char *name, *activation;
    int threads;
    text_shape s = {0};
    if (!PyArg_ParseTuple(
            args, "sillllllllsffd", &name, &threads, &s.num_layers, &s.hidden, &s.heads, &s.head_dim, &s.intermediate,
            &s.num_words, &s.num_positions, &s.num_types, &activation, &s.eps, &s.scale, &s.alone_products))
        return NULL;
    const char *problem = problem_of(&s, threads);
    if (!problem && !find_activation(activation, &s.activation)) problem = "no such activation";
    if (problem) return PyErr_Format(PyExc_ValueError, "%s", problem);
    const kernels *k = find_kernels(name, s.head_dim);
    if (!k) return PyErr_Format(PyExc_ValueError, "no kernels '%s' for heads of %ld", name, s.head_dim);
    return owner_new(type, &how, text_encoder_new(k, &s, threads), k);
}

static PyObject *py_set_tables(PyObject *self, PyObject *args) {
    address a[5];
    if (!PyArg_ParseTuple(args, "KKKKK", a, a + 1, a + 2, a + 3, a + 4)) return NULL;
    const text_tables w = {pointer(a[0]), pointer(a[1]), pointer(a[2]), pointer(a[3]), pointer(a[4])};
    text_encoder *t = owner_begin(self);
    if (!t) return NULL;
    return owner_end(self, text_encoder_set_tables(t, &w));
}

static PyObject *py_set_layer(PyObject *self, PyObject *args) {
    long number;
    address a[12];
    if (!PyArg_ParseTuple(
            args, "lKKKKKKKKKKKK", &number, a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6, a + 7, a + 8, a + 9, a + 10, a + 11))
        return NULL;
    const text_layer_weights w = {
        pointer(a[0]), pointer(a[1]), pointer(a[2]), pointer(a[3]), pointer(a[4]),  pointer(a[5]),
        pointer(a[6]), pointer(a[7]), pointer(a[8]), pointer(a[9]), pointer(a[10]), pointer(a[11]),
    };
    text_encoder *t = owner_begin(self);
    if (!t) return NULL;
    if (number < 0 || number >= text_encoder_get_shape(t)->num_layers) {
        owner_end(self, true);
        return PyErr_Format(PyExc_IndexError, "no layer %ld", number);
    }
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = text_encoder_set_layer(t, number, &w);
    Py_END_ALLOW_THREADS
    return owner_end(self, is_done);
}

static PyObject *py_encode(PyObject *self, PyObject *args) {
    address ids, positions, types, lengths, kept, out;
    text_step s = {0};
    if (!PyArg_ParseTuple(
            args, "lKKKKlKlK", &s.rows, &ids, &positions, &types, &lengths, &s.num_texts, &kept, &s.num_kept, &out))
        return NULL;
    s.ids = pointer(ids);
    s.positions = pointer(positions);
    s.types = pointer(types);
    s.lengths = pointer(lengths);
    s.kept = pointer(kept);
    s.out = pointer(out);
    text_encoder *t = owner_begin(self);
    if (!t) return NULL;
    const char *problem = s.num_kept >= 0 && !s.kept ? "no row" : text_encoder_check(t, &s);
    if (problem) {
        owner_end(self, true);
        return PyErr_Format(PyExc_ValueError, "The texts name %s", problem);
    }
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = text_encoder_run(t, &s);
    Py_END_ALLOW_THREADS
    return owner_end(self, is_done);
}

static PyMethodDef methods[] = {
    {"set_tables", py_set_tables, METH_VARARGS, "set_tables(words, positions, types, norm, its bias); tables are not copied"},
    {"set_layer", py_set_layer, METH_VARARGS,
     "set_layer(number, qkv, out, up, down, biases of these four, attention_norm, its bias, norm, its bias)"},
    {"encode", py_encode, METH_VARARGS,
     "encode(rows, ids, positions, types, lengths, num_texts, kept, num_kept, out); num_kept -1: all rows"},
    {"close", owner_close, METH_NOARGS, "Join the threads and give back the memory."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, object_new}, {Py_tp_dealloc, owner_free}, {Py_tp_methods, methods}, {Py_tp_getset, owner_attributes},
    {Py_tp_doc, "NativeTextEncoder(kernels, threads, num_layers, hidden, heads, head_dim, intermediate, num_words, "
                "num_positions, num_types, activation, eps, scale, alone_products)"},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "chiasm.engines.embedded.decoder._native.NativeTextEncoder",
    .basicsize = sizeof(owner),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

PyObject *new_text_encoder_type(void) { return PyType_FromSpec(&spec); }
