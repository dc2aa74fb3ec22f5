/* messages.c - Python's buffers, handled in a few instructions. */
#include <pyconfig.h>

#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030a0000
#endif
#include <Python.h>
#include <errno.h>
#include <stdbool.h>

#include "azc.h"
#include "python/messages.h"

enum { COPY_UP_TO = 4 << 10 }; /* bytes up to which a copy is cheaper than a pin */

/* An attribute of memoryviews.  To ask its descriptor takes half as long as a look-up by
 * name. */
typedef struct attribute {
    PyObject *descriptor;
    descrgetfunc get;
} attribute;

static attribute obj, nbytes, itemsize;
static PyObject *nothing; /* b"" */
/* (interned, since each new string for a name would stay in Python's cache of methods) */
static PyObject *pop_name, *release_name;

static bool find(attribute *it, const char *name) {
    PyObject *type = (PyObject *)&PyMemoryView_Type;
    it->descriptor = PyObject_GetAttrString(type, name);
    if (!it->descriptor) return false;
    it->get = (descrgetfunc)PyType_GetSlot(Py_TYPE(it->descriptor), Py_tp_descr_get);
    return true;
}

/* Returns NULL, with an exception, if the memoryview was released. */
static PyObject *ask(const attribute *it, PyObject *view) {
    return it->get(it->descriptor, view, (PyObject *)&PyMemoryView_Type);
}

/* Returns -1, with an exception, if the memoryview was released. */
static Py_ssize_t number(const attribute *it, PyObject *view) {
    PyObject *found = ask(it, view);
    Py_ssize_t n = found ? PyLong_AsSsize_t(found) : -1;
    Py_DecRef(found);
    return n;
}

/* The type of the object that owns the memory; for a memoryview another object does. */
static PyTypeObject *owner_type(PyObject *message) {
    PyTypeObject *type = Py_TYPE(message);
    if (type != &PyMemoryView_Type) return type;
    PyObject *owner = ask(&obj, message);
    if (!owner) return NULL;
    type = Py_TYPE(owner);
    Py_DecRef(owner); /* (the memoryview keeps it alive) */
    return type;
}

/* (A set would need the type's hash, which a metaclass of the program may compute.) */
static bool is_steady(PyObject *steady, const PyTypeObject *type) {
    for (Py_ssize_t i = PyTuple_Size(steady) - 1; i >= 0; i--)
        if ((PyTypeObject *)PyTuple_GetItem(steady, i) == type) return true;
    return false;
}

static Py_ssize_t total_of(PyObject *messages, PyObject *steady) {
    bool is_list = PyList_CheckExact(messages);
    if (!is_list && !PyTuple_CheckExact(messages)) return -1;
    Py_ssize_t count = is_list ? PyList_Size(messages) : PyTuple_Size(messages);
    const PyTypeObject *known = NULL; /* the type that was looked up last */
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < count && total >= 0; i++) {
        PyObject *one = PySequence_GetItem(messages, i);
        const PyTypeObject *type = one ? owner_type(one) : NULL;
        bool is_known = type && (type == known || is_steady(steady, type));
        Py_ssize_t n = is_known ? PyObject_Size(one) : -1;
        total = n < 0 ? -1 : total + n; /* (-1 also for a view without dimensions) */
        known = type;
        Py_DecRef(one);
    }
    return total;
}

static PyObject *steady_total(PyObject *steady, PyObject *messages) {
    Py_ssize_t total = total_of(messages, steady);
    if (total < 0) PyErr_Clear();
    return PyLong_FromSsize_t(total);
}

/* The size of the message if it may be copied in user space; else -1. */
static Py_ssize_t steady_size(PyObject *message, PyObject *steady) {
    const PyTypeObject *type = Py_TYPE(message);
    if (type == &PyByteArray_Type) return PyObject_Size(message);
    if (type != &PyMemoryView_Type) return -1;
    PyTypeObject *owner = owner_type(message);
    return owner && is_steady(steady, owner) ? number(&nbytes, message) : -1;
}

/* These are deprecated, and newer headers omit them, but they stay in the stable ABI.
 * The limited API of 3.10 has no other functions that return a buffer's address. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
PyAPI_FUNC(int) PyObject_AsReadBuffer(PyObject *, const void **, Py_ssize_t *);
PyAPI_FUNC(int) PyObject_AsWriteBuffer(PyObject *, void **, Py_ssize_t *);

static bool holds_bytes(PyObject *memory) {
    if (PyByteArray_CheckExact(memory)) return true;
    bool is_view = Py_TYPE(memory) == &PyMemoryView_Type;
    return is_view && number(&itemsize, memory) == 1;
}

/* Returns NULL, without an exception, if the message should not be copied here. */
static PyObject *small_copy(PyObject *message, PyObject *steady) {
    Py_ssize_t n = steady_size(message, steady);
    PyObject *copy = NULL;
    if (n >= 0 && n <= COPY_UP_TO) copy = PySequence_Concat(nothing, message);
    if (!copy) PyErr_Clear(); /* (`pin` will say what is wrong) */
    return copy;
}

static PyObject *none(void) {
    Py_IncRef(Py_None); /* (Py_RETURN_NONE of some versions omits this) */
    return Py_None;
}

/* A memoryview of a memoryview is counted in what all views of that memory share, and
 * without the GIL several threads spoil that count (CPython's issue 127716): the memory
 * would be free too early.  A PickleBuffer counts as a pin does. */
#ifdef Py_GIL_DISABLED
static bool is_holder(PyObject *view) {
    return PyMemoryView_Check(view) || PyPickleBuffer_Check(view);
}

static PyObject *hold(PyObject *memory) {
    bool shares = PyMemoryView_Check(memory);
    return shares ? PyPickleBuffer_FromObject(memory) : PyMemoryView_FromObject(memory);
}
#else
static bool is_holder(PyObject *view) { return PyMemoryView_Check(view); }

static PyObject *hold(PyObject *memory) { return PyMemoryView_FromObject(memory); }
#endif

/* Returns bytes, a copy, or an object that keeps the memory where it is; or NULL. */
static PyObject *kept(PyObject *message, PyObject *steady) {
    if (PyBytes_CheckExact(message)) {
        Py_IncRef(message);
        return message;
    }
    PyObject *copy = small_copy(message, steady);
    if (copy) return copy;
    return holds_bytes(message) ? hold(message) : NULL;
}

/* Releases the GIL.  The keeper of the memory is in `views` before C can queue the message.
 * Another thread may empty `views` at the end of the operation, so the caller has its own
 * reference until C returns. */
static int send(PyObject *const *given, const void *data, Py_ssize_t n) {
    azc_id channel = PyLong_AsUnsignedLongLong(given[0]);
    uint64_t token = PyLong_AsUnsignedLongLong(given[1]);
    long how = PyLong_AsLong(given[4]), messages = PyLong_AsLong(given[5]);
    if (!n && how == AZC_WRITE) return 0;
    PyThreadState *state = PyEval_SaveThread();
    int r =
        azc_send_bound(channel, token, data, (size_t)n, (int)messages, how == AZC_PUT);
    PyEval_RestoreThread(state);
    return r;
}

static bool keep(PyObject *views, PyObject *keeper) {
    Py_IncRef(keeper);
    return PyList_SetItem(views, 0, keeper) == 0;
}

static PyObject *send_kept(PyObject *const *given, PyObject *keeper) {
    const void *data = NULL;
    Py_ssize_t n = 0;
    bool found = true;
    if (PyBytes_CheckExact(keeper)) {
        data = PyBytes_AsString(keeper);
        n = PyBytes_Size(keeper);
    } else {
        found = PyObject_AsReadBuffer(keeper, &data, &n) == 0;
    }
    /* A message sent meanwhile (by a signal handler, say) may have the operation. */
    bool is_free = found && PyList_GetItem(given[2], 0) == Py_None;
    if (!is_free || !keep(given[2], keeper)) {
        PyErr_Clear(); /* (`pin` will say what is wrong) */
        return none();
    }
    int r = send(given, data, n);
    if ((r == 0 || r == -ESTALE) && !keep(given[2], Py_None)) PyErr_Clear();
    if (r == -ESTALE) return none();
    return r ? Py_BuildValue("(in)", r, n) : PyLong_FromLong(0);
}

static PyObject *send_at_once(PyObject *steady, PyObject *const *given,
                              Py_ssize_t count) {
    PyObject *keeper = count == 6 ? kept(given[3], steady) : NULL;
    if (!keeper) PyErr_Clear();
    PyObject *result = keeper ? send_kept(given, keeper) : none();
    Py_DecRef(keeper);
    return result;
}

/* ---- receiving --------------------------------------------------------- */

static PyObject *receive_at_once(PyObject *steady, PyObject *const *given,
                                 Py_ssize_t count) {
    (void)steady;
    PyObject *memory = count == 4 && holds_bytes(given[1]) ? hold(given[1]) : NULL;
    void *room;
    Py_ssize_t n = 0, need = 0, r = -1;
    if (memory && PyObject_AsWriteBuffer(memory, &room, &n) == 0 && n) {
        azc_id channel = PyLong_AsUnsignedLongLong(given[0]);
        uint64_t *come = PyLong_AsVoidPtr(given[3]);
        need = PyLong_AsSsize_t(given[2]);
        if (!need) need = n;
        PyThreadState *state = PyEval_SaveThread();
        r = azc_recv_now(channel, room, (size_t)n, (size_t)need, come);
        PyEval_RestoreThread(state);
    }
    PyErr_Clear();
    if (r > 0 && r < need) return memory;
    Py_DecRef(memory);
    return r >= 0 ? PyLong_FromSsize_t(r) : none();
}

/* ---- giving back -------------------------------------------------------- */

static bool is_pin(PyObject *view) {
    return view != Py_None && !PyBytes_CheckExact(view) && !PyTuple_Check(view);
}

/* (Calls release(): on a free-threaded Python another thread's memoryview might not end
 * with its last reference.) */
static PyObject *unpin(PyObject *release, PyObject *views) {
    PyObject *view;
    for (; (view = PyObject_CallMethodObjArgs(views, pop_name, NULL)); PyErr_Clear()) {
        if (is_holder(view))
            Py_DecRef(PyObject_CallMethodObjArgs(view, release_name, NULL));
        else if (is_pin(view))
            Py_DecRef(PyObject_CallFunctionObjArgs(release, view, NULL));
        Py_DecRef(view);
    }
    PyErr_Clear(); /* (pop: the list is empty) */
    return none();
}

/* ---- the functions ------------------------------------------------------ */

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

void *azc_messages(void *steady, void *release) {
    static PyMethodDef methods[] = {
        {"steady_total", steady_total, METH_O, NULL},
        {"send_at_once", FAST(send_at_once), NULL},
        {"receive_at_once", FAST(receive_at_once), NULL},
        {"unpin", unpin, METH_O, NULL},
    };
    nothing = PyBytes_FromStringAndSize(NULL, 0);
    pop_name = PyUnicode_InternFromString("pop");
    release_name = PyUnicode_InternFromString("release");
    if (!nothing || !pop_name || !release_name || !find(&obj, "obj") ||
        !find(&nbytes, "nbytes") || !find(&itemsize, "itemsize"))
        return NULL;
    return Py_BuildValue("(NNNN)", PyCFunction_NewEx(&methods[0], steady, NULL),
                         PyCFunction_NewEx(&methods[1], steady, NULL),
                         PyCFunction_NewEx(&methods[2], steady, NULL),
                         PyCFunction_NewEx(&methods[3], release, NULL));
}
