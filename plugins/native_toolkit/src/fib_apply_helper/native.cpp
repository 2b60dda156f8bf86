// Checks whether the arguments of a call are like those of an earlier one, in one call from Python.
//
// Compiled on the user's machine against the installed torch, see __init__.py. What is compared, and
// why that is sufficient, is described in flashinfer_bench/apply/dispatch/recognition.py.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <structmember.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

struct Wanted {
  PyTypeObject* type;
  uint64_t keys;
  c10::ScalarType dtype;
  c10::Device device;
  bool requires_grad;
  bool written;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // -1 if it addresses no element
  uintptr_t bytes;
};

struct Recogniser {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::vector<Wanted>* wanted;
  uint64_t usual;   // dispatch keys that every thread adds
  uint64_t masked;  // dispatch keys that it removes: those of autocast
  bool anywhere;    // do not check the thread's modes
  bool ungraded;    // require that no gradients are recorded
  bool writes;
};

bool thread_is_ordinary(const Recogniser& self) {
  if (self.ungraded && c10::GradMode::is_enabled()) return false;
  if (self.anywhere) return true;
  const auto local = c10::impl::tls_local_dispatch_key_set();
  return (local.included_.raw_repr() & ~self.usual) == 0 &&
         (local.excluded_.raw_repr() & self.masked) == self.masked;
}

bool is_like(const Wanted& wanted, PyObject* object) {
  if (Py_TYPE(object) != wanted.type) return false;
  const c10::TensorImpl* tensor = THPVariable_Unpack(object).unsafeGetTensorImpl();
  // Keys first: the rest may be read only from an ordinary tensor.
  if (tensor->key_set().raw_repr() != wanted.keys) return false;
  if (tensor->dtype().toScalarType() != wanted.dtype || tensor->device() != wanted.device ||
      tensor->requires_grad() != wanted.requires_grad) {
    return false;
  }
  const auto sizes = tensor->sizes();
  if (!sizes.equals(wanted.sizes)) return false;
  const auto strides = tensor->strides();
  for (size_t i = 0; i < wanted.strides.size(); ++i) {
    if (wanted.strides[i] >= 0 && strides[i] != wanted.strides[i]) return false;
  }
  return true;
}

uintptr_t start_of(PyObject* object) {
  return reinterpret_cast<uintptr_t>(THPVariable_Unpack(object).const_data_ptr());
}

bool share_memory(const Recogniser& self, PyObject* const* args) {
  const auto& wanted = *self.wanted;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i].written) continue;
    const uintptr_t start = start_of(args[i]), stop = start + wanted[i].bytes;
    for (size_t j = 0; j < wanted.size(); ++j) {
      if (j == i || (wanted[j].written && j < i)) continue;
      const uintptr_t other = start_of(args[j]);
      if (std::max(start, other) < std::min(stop, other + wanted[j].bytes)) return true;
    }
  }
  return false;
}

PyObject* recognise(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* names) {
  const auto& self = *reinterpret_cast<Recogniser*>(callable);
  const size_t count = PyVectorcall_NARGS(nargsf);
  if (self.wanted == nullptr || names != nullptr || count != self.wanted->size()) {
    Py_RETURN_FALSE;
  }
  try {
    if (!thread_is_ordinary(self)) Py_RETURN_FALSE;
    for (size_t i = 0; i < count; ++i) {
      if (!is_like((*self.wanted)[i], args[i])) Py_RETURN_FALSE;
    }
    if (self.writes && share_memory(self, args)) Py_RETURN_FALSE;
  } catch (const std::exception&) {  // a tensor without accessible memory
    Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

Wanted describe(PyObject* object) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const auto sizes = impl->sizes();
  const auto strides = impl->strides();
  Wanted wanted{Py_TYPE(object),
                impl->key_set().raw_repr(),
                impl->dtype().toScalarType(),
                impl->device(),
                impl->requires_grad(),
                false,
                {sizes.begin(), sizes.end()},
                {strides.begin(), strides.end()},
                static_cast<uintptr_t>(impl->numel() * impl->itemsize())};
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1 || impl->numel() == 0) wanted.strides[i] = -1;
  }
  return wanted;
}

int init(Recogniser* self, PyObject* args, PyObject* options) {
  static const char* names[] = {"tensors", "written", "usual", "masked", "anywhere", nullptr};
  PyObject *tensors, *written;
  unsigned long long usual, masked;
  int anywhere = 0;
  if (!PyArg_ParseTupleAndKeywords(args, options, "O!O!KK|p", const_cast<char**>(names),
                                   &PyTuple_Type, &tensors, &PyTuple_Type, &written, &usual,
                                   &masked, &anywhere)) {
    return -1;
  }
  if (self->wanted != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a recogniser is made once");
    return -1;
  }
  auto wanted = std::make_unique<std::vector<Wanted>>();
  bool ungraded = false, writes = false;
  try {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
      PyObject* tensor = PyTuple_GET_ITEM(tensors, i);
      if (!THPVariable_Check(tensor)) {
        PyErr_SetString(PyExc_TypeError, "not a tensor");
        return -1;
      }
      wanted->push_back(describe(tensor));
      ungraded = ungraded || (!anywhere && wanted->back().requires_grad);
    }
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return -1;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(written); ++i) {
    const Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GET_ITEM(written, i));
    if (index == -1 && PyErr_Occurred()) return -1;
    if (index < 0 || index >= static_cast<Py_ssize_t>(wanted->size())) {
      PyErr_SetString(PyExc_IndexError, "no such tensor");
      return -1;
    }
    (*wanted)[index].written = writes = true;
  }
  for (auto& each : *wanted) Py_INCREF(each.type);
  self->wanted = wanted.release();
  self->usual = usual;
  self->masked = masked;
  self->anywhere = anywhere;
  self->ungraded = ungraded;
  self->writes = writes;
  return 0;
}

PyObject* make(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<Recogniser*>(type->tp_alloc(type, 0));
  if (self != nullptr) self->vectorcall = recognise;
  return reinterpret_cast<PyObject*>(self);
}

void release(Recogniser* self) {
  if (self->wanted != nullptr) {
    for (auto& each : *self->wanted) Py_DECREF(each.type);
    delete self->wanted;
  }
  Py_TYPE(self)->tp_free(reinterpret_cast<PyObject*>(self));
}

PyTypeObject recogniser_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "fib_apply_native", nullptr, -1, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_fib_apply_native() {
  recogniser_type.tp_name = "fib_apply_native.Recogniser";
  recogniser_type.tp_basicsize = sizeof(Recogniser);
  recogniser_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  recogniser_type.tp_vectorcall_offset = offsetof(Recogniser, vectorcall);
  recogniser_type.tp_call = PyVectorcall_Call;
  recogniser_type.tp_new = make;
  recogniser_type.tp_init = reinterpret_cast<initproc>(init);
  recogniser_type.tp_dealloc = reinterpret_cast<destructor>(release);
  if (PyType_Ready(&recogniser_type) < 0) return nullptr;
  PyObject* made = PyModule_Create(&module);
  if (made == nullptr) return nullptr;
  Py_INCREF(&recogniser_type);
  if (PyModule_AddObject(made, "Recogniser", reinterpret_cast<PyObject*>(&recogniser_type)) < 0) {
    Py_DECREF(made);
    return nullptr;
  }
  return made;
}
