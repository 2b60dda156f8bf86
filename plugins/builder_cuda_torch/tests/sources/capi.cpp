// A module by Python's C API alone, which asks tensors for their addresses: compiled in a moment.
#include <Python.h>

#include <cstdint>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

static long long number_of(PyObject* tensor, const char* method) {
  PyObject* made = PyObject_CallMethod(tensor, method, nullptr);
  const long long value = made ? PyLong_AsLongLong(made) : 0;
  Py_XDECREF(made);
  return value;
}

static float* data_of(PyObject* tensor) {
  return reinterpret_cast<float*>(static_cast<std::uintptr_t>(number_of(tensor, "data_ptr")));
}

static PyObject* run(PyObject*, PyObject* arguments) {
  PyObject *x, *y;
  double scale;
  if (!PyArg_ParseTuple(arguments, "OOd", &x, &y, &scale)) return nullptr;
  const long long count = number_of(x, "numel");
  const float *a = data_of(x), *b = data_of(y);
  if (PyErr_Occurred()) return nullptr;
  PyObject* out = PyObject_CallMethod(x, "clone", nullptr);
  if (!out) return nullptr;
  float* o = data_of(out);
  for (long long i = 0; i < count; ++i) o[i] = (a[i] + b[i]) * static_cast<float>(scale);
  return out;
}

static PyMethodDef methods[] = {
    {"run", run, METH_VARARGS, "run(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor"},
    {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "capi", nullptr, -1, methods};

PyMODINIT_FUNC JOIN(PyInit_, TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
