// The Python module: an open run, what autograd packs, and the functions of the module.
//
// Plain C types, since packing and unpacking are on the hot path. See `tape.py` for their use.

#include "run.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Storage.h>
#include <torch/library.h>

namespace planner {
namespace {

struct RunObject {
  PyObject_HEAD
  Run* run;
};

struct KeptObject {
  PyObject_HEAD
  at::Tensor tensor;
  int64_t version;
};

struct PlaceholderObject {
  PyObject_HEAD
  std::shared_ptr<State> state;
  int pack;
};

struct TemplateObject {
  PyObject_HEAD
  std::shared_ptr<const Template> plan;
};

PyTypeObject *run_type, *kept_type, *placeholder_type, *template_type;

template <typename T>
T* make(PyTypeObject* type) {
  return reinterpret_cast<T*>(type->tp_alloc(type, 0));
}

template <typename T>
void destroy(PyObject* self) {
  auto* type = Py_TYPE(self);
  if constexpr (std::is_same_v<T, RunObject>) {
    auto* run = reinterpret_cast<T*>(self)->run;
    if (current == run) listen(nullptr);
    if (run->state) run->state->tape = nullptr;
    delete run;
  } else if constexpr (std::is_same_v<T, KeptObject>) {
    reinterpret_cast<T*>(self)->tensor.~Tensor();
  } else if constexpr (std::is_same_v<T, TemplateObject>) {
    reinterpret_cast<T*>(self)->plan.~shared_ptr();
  } else {
    auto* held = reinterpret_cast<T*>(self);
    auto& state = held->state;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (state && state->python != nullptr) {
      auto done = py::reinterpret_steal<py::object>(
          PyObject_CallMethod(state->python, "forget", "i", held->pack));
      if (!done) PyErr_WriteUnraisable(state->python);
    } else if (state) {
      const auto& plan = *state->plan;
      at::Tensor freed;
      Locked lock(*state);
      freed = forget(*state, plan.args[plan.packs[held->pack].arg].value);
      lock.unlock();
    }
    PyErr_Restore(kind, value, trace);
    state.~shared_ptr();
  }
  type->tp_free(self);
  Py_DECREF(type);
}

Run& run_of(PyObject* self) {
  return *reinterpret_cast<RunObject*>(self)->run;
}

PyObject* owned(PyObject* object) {
  return Py_NewRef(object);
}

// -- packing and unpacking ---------------------------------------------------------------------

PyObject* kept(PyObject* object) {
  if (!THPVariable_CheckExact(object) &&
      reinterpret_cast<PyObject*>(Py_TYPE(object)) != callbacks.parameter)
    return PyObject_CallOneArg(callbacks.kept, object);
  const auto& tensor = THPVariable_Unpack(object);
  auto* made = make<KeptObject>(kept_type);
  new (&made->tensor) at::Tensor(tensor.grad_fn() ? detached(tensor) : tensor);
  made->version = version_of(tensor);
  return reinterpret_cast<PyObject*>(made);
}

PyObject* run_pack(PyObject* self, PyObject* object) {
  HANDLE_TH_ERRORS
  auto& run = run_of(self);
  if (run.phase == Phase::following) {
    if (same_pack(run, THPVariable_Unpack(object))) {
      const auto& pack = run.plan->packs[run.packed++];
      if (!pack.dropped) return kept(object);
      auto* made = make<PlaceholderObject>(placeholder_type);
      new (&made->state) std::shared_ptr<State>(run.state);
      made->pack = run.packed - 1;
      run.state->placeholders[run.plan->delivery_of[run.plan->args[pack.arg].value]]++;
      return reinterpret_cast<PyObject*>(made);
    }
    hand_over(run);
  }
  if (run.phase == Phase::python)
    return PyObject_CallMethod(run.python, "pack", "O", object);
  return kept(object);
  END_HANDLE_TH_ERRORS
}

PyObject* value_of(PlaceholderObject* held) {
  auto state = held->state;
  if (!state->closed && state->python == nullptr) {  // a gradient inside a segment
    TORCH_CHECK(state->tape != nullptr, "an open run lost its tape");
    hand_over(run_of(state->tape));
  }
  if (state->python != nullptr)
    return PyObject_CallMethod(state->python, "value", "i", held->pack);
  const auto& plan = *state->plan;
  const auto& arg = plan.args[plan.packs[held->pack].arg];
  int at = plan.delivery_of[arg.value];
  Locked lock(*state);
  if (!state->delivered[at].tensor.defined()) {
    auto done = py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(
        callbacks.replay, state->surroundings, reinterpret_cast<PyObject*>(held), nullptr));
    if (!done) throw py::error_already_set();
  }
  auto view = rebuild(checked_delivery(*state, state->delivered[at]), arg, true);
  if (state->kept_servings > 0) count_serving(*state, at);
  return THPVariable_Wrap(std::move(view));
}

// Replay the group that makes a placeholder's value. Called below autograd, with the lock.
PyObject* placeholder_make(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  auto state = reinterpret_cast<PlaceholderObject*>(self)->state;
  const auto& plan = *state->plan;
  int value = plan.args[plan.packs[reinterpret_cast<PlaceholderObject*>(self)->pack].arg].value;
  bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
  size_t count = 0;
  {
    py::gil_scoped_release others;
    count = run_group(*state, plan.owner[value], keep_graph);
  }
  return PyLong_FromSize_t(count);
  END_HANDLE_TH_ERRORS
}

PyObject* unpack(PyObject*, PyObject* packed) {
  HANDLE_TH_ERRORS
  if (Py_TYPE(packed) == placeholder_type)
    return value_of(reinterpret_cast<PlaceholderObject*>(packed));
  if (Py_TYPE(packed) != kept_type) return PyObject_CallOneArg(callbacks.unpack, packed);
  auto* held = reinterpret_cast<KeptObject*>(packed);
  if (version_of(held->tensor) != held->version)
    raise(callbacks.bad_kept, py::make_tuple(wrapped(held->tensor), held->version));
  return THPVariable_Wrap(held->tensor);
  END_HANDLE_TH_ERRORS
}

// -- a run -------------------------------------------------------------------------------------

PyObject* run_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* made = make<RunObject>(type);
  if (made != nullptr) made->run = new Run();
  return reinterpret_cast<PyObject*>(made);
}

PyObject* run_begin(PyObject* self, PyObject* given) {
  HANDLE_TH_ERRORS
  PyObject *plan, *tape, *name, *surroundings;
  if (!PyArg_ParseTuple(given, "O!OOO", template_type, &plan, &tape, &name, &surroundings))
    return nullptr;
  auto& run = run_of(self);
  run.begin(reinterpret_cast<TemplateObject*>(plan)->plan);
  run.tape = owned(tape);
  run.state->tape = self;
  run.state->name = owned(name);
  run.state->surroundings = owned(surroundings);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Everything goes to a Python tape from the start: to record as the core will follow.
PyObject* run_begin_in_python(PyObject* self, PyObject* given) {
  PyObject *tape, *python;
  if (!PyArg_ParseTuple(given, "OO", &tape, &python)) return nullptr;
  auto& run = run_of(self);
  run.tape = owned(tape);
  run.python = owned(python);
  run.phase = Phase::python;
  Py_RETURN_NONE;
}

// Push the hooks, then include the key: both, or neither.
PyObject* run_listen(PyObject* self, PyObject* given) {
  PyObject *push, *pack, *unpack;
  if (!PyArg_ParseTuple(given, "OOO", &push, &pack, &unpack)) return nullptr;
  PyObject* done = PyObject_CallFunctionObjArgs(push, pack, unpack, nullptr);
  if (done != nullptr) listen(&run_of(self));
  return done;
}

PyObject* run_silence(PyObject* self, PyObject*) {
  if (current == &run_of(self)) listen(nullptr);
  Py_RETURN_NONE;
}

PyObject* run_hand_over(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  if (run_of(self).phase == Phase::following) hand_over(run_of(self));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Whether all was followed; if so, what replays need is left behind, and the rest let go.
PyObject* run_finish(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  auto& run = run_of(self);
  bool complete = run.phase == Phase::following &&
      static_cast<size_t>(run.at) == run.plan->ops.size() &&
      static_cast<size_t>(run.packed) == run.plan->packs.size();
  if (!complete) Py_RETURN_FALSE;
  finish(run);
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

PyObject* run_clear(PyObject* self, PyObject*) {
  auto& run = run_of(self);
  if (current == &run) listen(nullptr);
  if (run.state) run.state->tape = nullptr;
  run.clear();
  Py_CLEAR(run.tape);
  Py_CLEAR(run.python);
  Py_RETURN_NONE;
}

PyObject* run_delegate(PyObject* self, PyObject* python) {
  auto& run = run_of(self);
  if (run.state && run.state->python == nullptr) run.state->python = owned(python);
  Py_RETURN_NONE;
}

py::object words_of(const Sample& sample) {
  if (!sample.count) return py::none();
  py::tuple words(sample.count);
  for (int i = 0; i < sample.count; i++) words[i] = py::int_(sample.words[i]);
  return words;
}

py::object number_of(const c10::IValue& value) {
  if (value.isInt()) return py::int_(value.toInt());
  return py::float_(value.toDouble());
}

// All that the Python path needs to go on. The pins of storages belong to the caller.
PyObject* run_export(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  auto& run = run_of(self);
  auto& state = *run.state;
  py::list pins, base, outside, storages, kept, copies, draws, calls, placeholders;
  for (size_t i = 0; i < run.slots.size(); i++) {
    pins.append(reinterpret_cast<uintptr_t>(run.slots[i].storage));
    base.append(run.slots[i].base);
    if (i < run.storages.size() && run.storages[i])
      storages.append(py::make_tuple(
          i, py::reinterpret_steal<py::object>(THPStorage_Wrap(run.storages[i]))));
  }
  run.slots.release();
  for (size_t i = 0; i < run.outside.size(); i++) {
    const auto& found = run.outside[i];
    if (found.tensor.defined())
      outside.append(
          py::make_tuple(i, wrapped(found.tensor), found.version, words_of(found.sample)));
    if (run.copies[i].defined()) copies.append(py::make_tuple(i, wrapped(run.copies[i])));
  }
  for (const auto& item : run.kept)
    kept.append(py::make_tuple(item.value, wrapped(item.tensor), item.version));
  for (size_t i = 0; i < run.plan->ops.size(); i++) {
    int draw = run.plan->ops[i].draw;
    if (draw >= 0 && state.draws[draw].defined())
      draws.append(py::make_tuple(i, wrapped(state.draws[draw])));
  }
  for (const auto& [op, own] : state.calls) {
    py::list numbers;
    for (size_t i = 0; i < own.size(); i++)
      if (own[i].isInt() || own[i].isDouble())
        numbers.append(py::make_tuple(i, number_of(own[i])));
    calls.append(py::make_tuple(op, numbers));
  }
  for (size_t i = 0; i < state.plan->delivery_of.size(); i++) {
    int at = state.plan->delivery_of[i];
    if (at >= 0 && state.placeholders[at] > 0)
      placeholders.append(py::make_tuple(i, state.placeholders[at]));
  }
  py::dict told;
  told["at"] = run.at;
  told["packed"] = run.packed;
  told["pins"] = pins;
  told["base"] = base;
  told["outside"] = outside;
  told["storages"] = storages;
  told["kept"] = kept;
  told["copies"] = copies;
  told["draws"] = draws;
  told["calls"] = calls;
  told["placeholders"] = placeholders;
  return told.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* get_packed(PyObject* self, void*) {
  return PyLong_FromLong(run_of(self).packed);
}

// For transforms that switch hooks off: see `aside.py`.
PyObject* get_stands_aside(PyObject* self, void*) {
  return PyBool_FromLong(run_of(self).phase != Phase::closed);
}

// -- the module --------------------------------------------------------------------------------

PyObject* module_template(PyObject*, PyObject* told) {
  HANDLE_TH_ERRORS
  auto plan = read_template(py::reinterpret_borrow<py::dict>(told));
  auto* made = make<TemplateObject>(template_type);
  new (&made->plan) std::shared_ptr<const Template>(std::move(plan));
  return reinterpret_cast<PyObject*>(made);
  END_HANDLE_TH_ERRORS
}

PyObject* module_setup(PyObject*, PyObject* told) {
  HANDLE_TH_ERRORS
  auto given = py::reinterpret_borrow<py::dict>(told);
  const std::pair<const char*, PyObject**> places[] = {
      {"replay", &callbacks.replay},
      {"bad_source", &callbacks.bad_source},
      {"bad_delivery", &callbacks.bad_delivery},
      {"bad_kept", &callbacks.bad_kept},
      {"unpack", &callbacks.unpack},
      {"kept", &callbacks.kept},
      {"ignored", &callbacks.ignored},
      {"hidden", &callbacks.hidden},
      {"push_mode", &callbacks.push_mode},
      {"pop_mode", &callbacks.pop_mode},
      {"hand_over", &callbacks.hand_over},
      {"parameter", &callbacks.parameter}};
  for (auto [name, place] : places) *place = owned(py::object(given[name]).ptr());
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* module_current(PyObject*, PyObject*) {
  return owned(current == nullptr ? Py_None : current->tape);
}

PyMethodDef run_methods[] = {
    {"pack", run_pack, METH_O, nullptr},
    {"begin", run_begin, METH_VARARGS, nullptr},
    {"begin_in_python", run_begin_in_python, METH_VARARGS, nullptr},
    {"listen", run_listen, METH_VARARGS, nullptr},
    {"silence", run_silence, METH_NOARGS, nullptr},
    {"hand_over", run_hand_over, METH_NOARGS, nullptr},
    {"finish", run_finish, METH_NOARGS, nullptr},
    {"clear", run_clear, METH_NOARGS, nullptr},
    {"delegate", run_delegate, METH_O, nullptr},
    {"export", run_export, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef run_members[] = {
    {"packed", get_packed, nullptr, nullptr, nullptr},
    {"stands_aside", get_stands_aside, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef placeholder_methods[] = {
    {"make", placeholder_make, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyMethodDef module_methods[] = {
    {"unpack", unpack, METH_O, nullptr},
    {"template", module_template, METH_O, nullptr},
    {"setup", module_setup, METH_O, nullptr},
    {"current", module_current, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

template <typename T>
PyTypeObject* make_type(const char* name, PyMethodDef* methods, bool base) {
  static PyMethodDef none[] = {{nullptr, nullptr, 0, nullptr}};
  static PyGetSetDef no_members[] = {{nullptr, nullptr, nullptr, nullptr, nullptr}};
  PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(&destroy<T>)},
      {Py_tp_methods, methods == nullptr ? none : methods},
      {Py_tp_getset, base ? run_members : no_members},
      {base ? Py_tp_new : 0, base ? reinterpret_cast<void*>(&run_new) : nullptr},
      {0, nullptr}};
  unsigned flags = Py_TPFLAGS_DEFAULT;
  if (!base) flags |= Py_TPFLAGS_DISALLOW_INSTANTIATION;
  PyType_Spec spec = {name, sizeof(T), 0, flags, slots};
  return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "planner_native", nullptr, -1, module_methods,
    nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace planner

TORCH_LIBRARY_IMPL(_, Fake, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&planner::fallback>());
}

PyMODINIT_FUNC PyInit_planner_native() {
  using namespace planner;
  run_type = make_type<RunObject>("planner_native.Run", run_methods, true);
  kept_type = make_type<KeptObject>("planner_native.Kept", nullptr, false);
  placeholder_type =
      make_type<PlaceholderObject>("planner_native.Placeholder", placeholder_methods, false);
  template_type = make_type<TemplateObject>("planner_native.Template", nullptr, false);
  PyObject* made = PyModule_Create(&module);
  if (made == nullptr || run_type == nullptr || kept_type == nullptr ||
      placeholder_type == nullptr || template_type == nullptr)
    return nullptr;
  PyModule_AddObjectRef(made, "Run", reinterpret_cast<PyObject*>(run_type));
  PyModule_AddObjectRef(made, "Placeholder", reinterpret_cast<PyObject*>(placeholder_type));
  PyModule_AddObjectRef(made, "Kept", reinterpret_cast<PyObject*>(kept_type));
  return made;
}
