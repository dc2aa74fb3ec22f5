/* messages.c - many of Python's buffers, looked at in one call. */
#include <pyconfig.h>

#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030a0000
#endif
#include <Python.h>
#include <stdbool.h>

#include "python/messages.h"

/* The attribute `obj` of memoryviews, and how to ask for it: half of what a look for it
 * by its name takes. */
static PyObject *obj;
static descrgetfunc get_obj;

/* Of whose memory it is: a memoryview's is that of another object. */
static PyTypeObject *owner_type(PyObject *message) {
    PyTypeObject *type = Py_TYPE(message);
    if (type != &PyMemoryView_Type) return type;
    PyObject *owner = get_obj(obj, message, (PyObject *)type);
    if (!owner) return NULL; /* it was released */
    type = Py_TYPE(owner);
    Py_DECREF(owner); /* (the memoryview has it, too) */
    return type;
}

static Py_ssize_t total_of(PyObject *messages, PyObject *steady) {
    bool is_list = PyList_CheckExact(messages);
    if (!is_list && !PyTuple_CheckExact(messages)) return -1;
    Py_ssize_t count = is_list ? PyList_Size(messages) : PyTuple_Size(messages);
    const PyTypeObject *known = NULL; /* the one that was looked up last */
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = is_list ? PyList_GetItem(messages, i)
                                : PyTuple_GetItem(messages, i);
        PyTypeObject *type = owner_type(one);
        if (!type) return -1;
        if (type != known && PySet_Contains(steady, (PyObject *)type) != 1)
            return -1;
        known = type;
        Py_ssize_t n = PyObject_Size(one);
        if (n < 0) return -1; /* it has no dimension */
        total += n;
    }
    return total;
}

static PyObject *steady_total(PyObject *steady, PyObject *messages) {
    Py_ssize_t total = total_of(messages, steady);
    if (total < 0) PyErr_Clear();
    return PyLong_FromSsize_t(total);
}

void *azc_steady_total(void *steady) {
    static PyMethodDef method = {"steady_total", steady_total, METH_O, NULL};
    obj = PyObject_GetAttrString((PyObject *)&PyMemoryView_Type, "obj");
    if (!obj) return NULL;
    get_obj = (descrgetfunc)PyType_GetSlot(Py_TYPE(obj), Py_tp_descr_get);
    return PyCFunction_NewEx(&method, steady, NULL);
}
