// A module by Python's C API alone: compiled in a moment, for tests of everything around it.
#include <Python.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#ifndef MODULE_NAME
#define MODULE_NAME TORCH_EXTENSION_NAME
#endif
#ifndef VALUE
#define VALUE 1
#endif

inline long calls = 0;

static PyObject* run(PyObject*, PyObject*) { return PyLong_FromLong(VALUE * 100 + ++calls); }

static PyMethodDef methods[] = {{"run", run, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "bare", nullptr, -1, methods};

PyMODINIT_FUNC JOIN(PyInit_, MODULE_NAME)() { return PyModule_Create(&module); }
