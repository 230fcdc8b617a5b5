/* Python's side of the decoder, `NativeDecoder`, and the module. Arrays come as addresses; the caller
 * (native_decoder.py) checks their types and sizes, this file what would lead outside of them. The GIL is released while
 * anything is computed. */
#include "owner.h"

#include <stdlib.h>

#include "adapter_module.h"
#include "decoder.h"

static void release(void *owned) { decoder_free(owned); }

static const ownership how = {"decoder", release};

static const char *problem_of(const decoder_shape *s, int threads) {
    if (s->num_layers < 1 || s->hidden < 1 || s->intermediate < 1 || s->vocab < 1 || s->head_dim < 2)
        return "sizes must be positive";
    if (s->kv_heads < 1 || s->heads < 1 || s->heads % s->kv_heads) return "heads must be a multiple of key heads";
    if (threads < 1 || threads > 256) return "threads must be 1 to 256";
    return NULL;
}

static PyObject *object_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    (void)named;
    const char *name;
    int threads, is_bf16;
    decoder_shape s = {0};
    if (!PyArg_ParseTuple(
            args, "silllllllpffd", &name, &threads, &s.num_layers, &s.hidden, &s.heads, &s.kv_heads, &s.head_dim,
            &s.intermediate, &s.vocab, &is_bf16, &s.eps, &s.scale, &s.alone_products))
        return NULL;
    s.is_bf16 = is_bf16;
    const char *problem = problem_of(&s, threads);
    if (problem) return PyErr_Format(PyExc_ValueError, "%s", problem);
    const kernels *k = find_kernels(name, s.head_dim);
    if (!k) return PyErr_Format(PyExc_ValueError, "no kernels '%s' for heads of %ld", name, s.head_dim);
    return owner_new(type, &how, decoder_new(k, &s, threads), k);
}

static PyObject *py_set_layer(PyObject *self, PyObject *args) {
    long number;
    address a[12];
    if (!PyArg_ParseTuple(
            args, "lKKKKKKKKKKKK", &number, a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6, a + 7, a + 8, a + 9, a + 10,
            a + 11))
        return NULL;
    const layer_weights w = {
        pointer(a[0]), pointer(a[1]), pointer(a[2]), pointer(a[3]), pointer(a[4]),  pointer(a[5]),
        pointer(a[6]), pointer(a[7]), pointer(a[8]), pointer(a[9]), pointer(a[10]), pointer(a[11]),
    };
    decoder *d = owner_begin(self);
    if (!d) return NULL;
    if (number < 0 || number >= decoder_get_shape(d)->num_layers) {
        owner_end(self, true);
        return PyErr_Format(PyExc_IndexError, "no layer %ld", number);
    }
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = decoder_set_layer(d, number, &w);
    Py_END_ALLOW_THREADS
    return owner_end(self, is_done);
}

static PyObject *py_set_head(PyObject *self, PyObject *args) {
    address norm, weights;
    if (!PyArg_ParseTuple(args, "KK", &norm, &weights)) return NULL;
    decoder *d = owner_begin(self);
    if (!d) return NULL;
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = decoder_set_head(d, pointer(norm), pointer(weights));
    Py_END_ALLOW_THREADS
    return owner_end(self, is_done);
}

/* Spans of rows as {adapter, row, count} in a new array; NULL with an exception. */
static adapted_rows *adapted_of(PyObject *self, PyObject *spans) {
    const Py_ssize_t count = PyTuple_Size(spans);
    adapted_rows *adapted = count < 0 ? NULL : calloc(count + 1, sizeof *adapted);
    if (!adapted) return count < 0 ? NULL : (adapted_rows *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one;
        if (PyArg_ParseTuple(PyTuple_GetItem(spans, i), "Oll", &one, &adapted[i].row, &adapted[i].count) &&
            (adapted[i].adapter = adapter_of(one, self)))
            continue;
        free(adapted);
        return NULL;
    }
    return adapted;
}

static PyObject *run_step(PyObject *self, const decoder_step *s) {
    decoder *d = owner_begin(self);
    if (!d) return NULL;
    const char *problem = decoder_check(d, s);
    if (problem) {
        owner_end(self, true);
        return PyErr_Format(PyExc_ValueError, "The step names %s", problem);
    }
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = decoder_run(d, s);
    Py_END_ALLOW_THREADS
    return owner_end(self, is_done);
}

static PyObject *py_step(PyObject *self, PyObject *args) {
    address x, cosine, sine, kv, runs, deep_rows, deep, wanted, kept;
    PyObject *spans;
    decoder_step s = {0};
    if (!PyArg_ParseTuple(
            args, "lKKKKllKlKKllKlKO!", &s.rows, &x, &cosine, &sine, &kv, &s.slots, &s.max_tokens, &runs, &s.num_runs,
            &deep_rows, &deep, &s.num_deep, &s.num_levels, &wanted, &s.num_wanted, &kept, &PyTuple_Type, &spans))
        return NULL;
    s.x = pointer(x);
    s.cosine = pointer(cosine);
    s.sine = pointer(sine);
    s.kv = pointer(kv);
    s.runs = pointer(runs);
    s.deep_rows = pointer(deep_rows);
    s.deep = pointer(deep);
    s.wanted = pointer(wanted);
    s.kept = pointer(kept);
    adapted_rows *adapted = adapted_of(self, spans); /* the caller keeps the adapters alive */
    if (!adapted) return NULL;
    s.adapted = adapted;
    s.num_adapted = PyTuple_Size(spans);
    PyObject *result = run_step(self, &s);
    free(adapted);
    return result;
}

static PyObject *py_adapter(PyObject *self, PyObject *nothing) {
    (void)nothing;
    const owner *o = (owner *)self;
    if (!o->owned) return PyErr_Format(PyExc_ValueError, "the decoder is closed");
    return new_adapter(self, o->kernels, decoder_get_shape(o->owned));
}

static PyObject *py_logits(PyObject *self, PyObject *args) {
    address x, out;
    long rows;
    if (!PyArg_ParseTuple(args, "lKK", &rows, &x, &out)) return NULL;
    decoder *d = owner_begin(self);
    if (!d) return NULL;
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = decoder_logits(d, pointer(x), rows, pointer(out));
    Py_END_ALLOW_THREADS
    return owner_end(self, is_done);
}

static PyMethodDef methods[] = {
    {"set_layer", py_set_layer, METH_VARARGS,
     "set_layer(number, input_norm, post_norm, q_norm, k_norm, qkv, out, gate_up, down, biases of these four)"},
    {"set_head", py_set_head, METH_VARARGS, "set_head(norm, weights)"},
    {"step", py_step, METH_VARARGS,
     "step(rows, x, cos, sin, kv, slots, max_tokens, runs, num_runs, deep_rows, deep, num_deep, num_levels, "
     "wanted, num_wanted, kept, spans of rows (adapter, first, count))"},
    {"adapter", py_adapter, METH_NOARGS, "An adapter for this decoder that adds nothing yet."},
    {"logits", py_logits, METH_VARARGS, "logits(rows, x, out)"},
    {"close", owner_close, METH_NOARGS, "Join the threads and give back the memory."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, object_new}, {Py_tp_dealloc, owner_free}, {Py_tp_methods, methods}, {Py_tp_getset, owner_attributes},
    {Py_tp_doc, "NativeDecoder(kernels, threads, num_layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, "
                "is_bf16, eps, scale, alone_products)"},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "chiasm.engines.embedded.decoder._native.NativeDecoder",
    .basicsize = sizeof(owner),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

static PyObject *py_kernels_for(PyObject *self, PyObject *args) {
    (void)self;
    long head_dim;
    const char *name = "";
    if (!PyArg_ParseTuple(args, "l|s", &head_dim, &name)) return NULL;
    const kernels *k = find_kernels(name, head_dim);
    return PyUnicode_FromString(k ? k->name : "");
}

static PyMethodDef functions[] = {
    {"kernels_for", py_kernels_for, METH_VARARGS,
     "kernels_for(head_dim, name='') -> the best kernels (or those) if this CPU and head size can use them, else ''"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "Decoder, vision tower and text encoder in C.", -1, functions,
                                    NULL, NULL, NULL, NULL};

/* Takes the reference to `type`. */
static bool add_type(PyObject *m, const char *name, PyObject *type) {
    const bool is_added = m && type && PyModule_AddObjectRef(m, name, type) >= 0;
    Py_XDECREF(type);
    return is_added;
}

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *m = PyModule_Create(&module);
    if (add_type(m, "NativeDecoder", PyType_FromSpec(&spec)) && add_type(m, "NativeTower", new_tower_type()) &&
        add_type(m, "NativeTextEncoder", new_text_encoder_type()) && add_type(m, "NativeAdapter", new_adapter_type()))
        return m;
    Py_XDECREF(m);
    return NULL;
}
