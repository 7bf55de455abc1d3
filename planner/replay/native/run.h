// Following: compares an open segment's ops and packs with a recorded program.
//
// The counterpart of `follower.py`. The fallback sits on a dispatch key below autograd and below
// Python's modes; a thread includes that key while a run is open on it. From the first difference
// the run is handed over to the Python path: each op then goes to it through the same fallback.
#pragma once

#include "state.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/PyInterpreter.h>

namespace planner {

constexpr auto kKey = c10::DispatchKey::Fake;
constexpr auto kBelow = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
constexpr auto kNotBelow = c10::DispatchKeySet(c10::DispatchKeySet::FULL) ^ kBelow;

// As within a dispatch mode, ops that a kernel calls move no version counters of their own.
constexpr auto kNotWithin =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet(kKey);

struct Outside {  // a value from outside, as it was when first read
  at::Tensor tensor;
  int64_t version = 0;
  Sample sample;
};

struct KeptValue {
  int value;
  at::Tensor tensor;
  int64_t version;
};

enum class Phase : uint8_t { closed, following, python, paused };

struct Run {
  std::shared_ptr<const Template> plan;
  std::shared_ptr<State> state;
  Slots slots;
  std::vector<Outside> outside;
  std::vector<c10::Storage> storages;  // of outside values, by slot
  std::vector<KeptValue> kept;
  std::vector<at::Tensor> copies;  // by ordinal of the outside value
  int at = 0, packed = 0;
  Phase phase = Phase::closed;
  PyObject* tape = nullptr;    // held while the run is open
  PyObject* python = nullptr;  // the tape that took it over

  void begin(std::shared_ptr<const Template> t) {
    plan = std::move(t);
    state = std::make_shared<State>(plan);
    slots.reserve(plan->slots + 1);
    outside.resize(plan->outside_value.size());
    copies.resize(outside.size());
    storages.resize(plan->slots);
    phase = Phase::following;
  }

  void clear() {
    phase = Phase::closed;
    slots.clear(0);
    outside.clear();
    storages.clear();
    kept.clear();
    copies.clear();
    state.reset();
  }

  void roll_back(size_t count) {
    for (size_t slot = count; slot < slots.size(); slot++) {
      if (slot < storages.size()) storages[slot] = c10::Storage();
      for (size_t i = 0; i < outside.size(); i++) {
        bool first = plan->outside_slot[i] == static_cast<int>(slot);
        if (first && outside[i].tensor.defined()) outside[i] = Outside();
      }
    }
    slots.clear(count);
  }
};

inline thread_local Run* current = nullptr;

inline void listen(Run* run) {
  current = run;
  c10::impl::tls_set_dispatch_key_included(kKey, run != nullptr);
}

// -- comparing ---------------------------------------------------------------------------------

inline bool is_plain(const at::Tensor& tensor) {
  PyObject* object = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  if (object == nullptr) return true;
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  return type == THPVariableClass || type == callbacks.parameter;
}

inline bool same_view(const Arg& arg, const at::Tensor& got) {
  return comparable(got) && got.sizes() == arg.size && got.strides() == arg.stride &&
      got.storage_offset() == arg.offset && got.scalar_type() == arg.dtype && !got.is_conj() &&
      !got.is_neg();
}

// The first sight of a value from outside: compare it, and enter it.
inline bool same_outside(Run& run, const Arg& arg, const at::Tensor& got) {
  if (got.device() != arg.device || !is_plain(got)) return false;
  auto* storage = storage_of(got);
  int slot = run.slots.find(storage);
  int64_t version = version_of(got);
  if (arg.new_slot) {
    if (slot >= 0 || static_cast<size_t>(arg.slot) != run.slots.size()) return false;
    run.slots.add(storage, version);
  } else if (slot != arg.slot || version - run.slots[slot].base != arg.counter) {
    return false;
  }
  run.outside[arg.outside] = {got, version, arg.source ? take_sample(got) : Sample()};
  run.storages[arg.slot] = got.storage();
  return true;
}

inline bool same_tensor(Run& run, const Arg& arg, const at::Tensor& got) {
  if (!same_view(arg, got)) return false;
  if (arg.first) return same_outside(run, arg, got);
  auto* storage = storage_of(got);
  size_t slot = arg.slot;
  return slot < run.slots.size() && run.slots[slot].storage == storage &&
      (!run.slots.aliased() || run.slots.find(storage) == arg.slot) &&
      version_of(got) - run.slots[slot].base == arg.counter;
}

inline bool same_items(Run& run, const Entry& entry, const c10::IValue& got) {
  if (!got.isList()) return false;
  auto items = got.toListRef();
  if (items.size() != entry.items.size()) return false;
  for (size_t i = 0; i < items.size(); i++) {
    bool tensor = items[i].isTensor() && items[i].toTensor().defined();
    if (tensor != (entry.items[i] >= 0)) return false;
    if (tensor && !same_tensor(run, run.plan->args[entry.items[i]], items[i].toTensor()))
      return false;
  }
  return true;
}

// Whether an op's arguments are the recorded ones; enters what comes from outside.
inline bool same_call(Run& run, const Op& op, const c10::IValue* got) {
  bool changed = false;
  const auto& entries = op.call.entries;
  for (size_t i = 0; i < entries.size(); i++) {
    const auto& entry = entries[i];
    switch (entry.kind) {
      case Kind::tensor:
        if (!got[i].isTensor() || !got[i].toTensor().defined()) return false;
        if (!same_tensor(run, run.plan->args[entry.arg], got[i].toTensor())) return false;
        break;
      case Kind::list:
        if (!same_items(run, entry, got[i])) return false;
        break;
      case Kind::statistic:
        if (!got[i].isTensor() || !got[i].toTensor().defined()) return false;
        break;
      case Kind::constant:
        if (same_constant(entry.constant, got[i])) break;
        if (!entry.number || !both_numbers(entry.constant, got[i])) return false;
        changed = true;
        break;
      case Kind::wrapped: {
        auto number = unwrapped(got[i]);
        if (number.isNone()) return false;
        if (same_constant(entry.constant, number)) break;
        if (!both_numbers(entry.constant, number)) return false;
        changed = true;
      }
    }
  }
  if (changed) {
    std::vector<c10::IValue> own(entries.size());
    for (size_t i = 0; i < entries.size(); i++)
      if (entries[i].number)
        own[i] = entries[i].kind == Kind::wrapped ? unwrapped(got[i]) : got[i];
    run.state->calls[run.at] = std::move(own);
  }
  return true;
}

// -- running -----------------------------------------------------------------------------------

inline void enter_made(Run& run, const Op& op, const torch::jit::Stack& stack) {
  size_t returns = op.call.op.schema().returns().size(), flat = 0;
  auto enter = [&](const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined() || flat >= op.outs.size()) return;
    if (op.outs[flat++] >= 0) run.slots.add(storage_of(value.toTensor()), 0);
  };
  for (size_t i = stack.size() - returns; i < stack.size(); i++) {
    if (stack[i].isTensorList()) {
      for (const auto& item : stack[i].toListRef()) enter(item);
    } else {
      enter(stack[i]);
    }
  }
}

inline at::Tensor nth_output(const Op& op, const torch::jit::Stack& stack, int index) {
  size_t returns = op.call.op.schema().returns().size();
  for (size_t i = stack.size() - returns; i < stack.size(); i++) {
    if (stack[i].isTensorList()) {
      for (const auto& item : stack[i].toListRef())
        if (index-- == 0) return item.toTensor();
    } else if (stack[i].isTensor() && stack[i].toTensor().defined() && index-- == 0) {
      return stack[i].toTensor();
    }
  }
  TORCH_CHECK(false, "an op made fewer tensors than when it was recorded");
}

inline void copy_outside(Run& run, int ordinal) {
  if (!run.copies[ordinal].defined())
    run.copies[ordinal] = copy_storage(run.outside[ordinal].tensor);
}

// Save the statistics that earlier reads, here or in other runs, will need again.
inline void before_hidden_writes(Run& run, const Op& op, const c10::IValue* args) {
  for (int position : op.hidden) {
    const auto& tensor = args[position].toTensor();
    {
      py::gil_scoped_acquire gil;
      auto done = py::reinterpret_steal<py::object>(
          PyObject_CallOneArg(callbacks.hidden, wrapped(tensor).ptr()));
      if (!done) throw py::error_already_set();
    }
    int slot = run.slots.find(storage_of(tensor));
    for (size_t i = 0; slot >= 0 && i < run.outside.size(); i++)
      if (run.plan->outside_slot[i] == slot && run.outside[i].tensor.defined())
        copy_outside(run, static_cast<int>(i));
  }
}

inline void before_op(Run& run, const Op& op, const c10::IValue* args) {
  at::AutoDispatchBelowADInplaceOrView below;
  for (int ordinal : op.copied) copy_outside(run, ordinal);
  if (op.draw >= 0) {
    auto generator = at::globalContext().defaultGenerator(op.device);
    std::lock_guard<std::mutex> mine(generator.mutex());
    run.state->draws[op.draw] = generator.get_state();
  }
  if (!op.hidden.empty()) before_hidden_writes(run, op, args);
}

inline void run_op(
    Run& run, const Op& op, const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  if (!op.busy) {
    handle.redispatchBoxed(keys & kBelow, stack);
    run.at++;
    enter_made(run, op, *stack);
    return;
  }
  const auto* args = stack->data() + (stack->size() - op.call.entries.size());
  before_op(run, op, args);
  std::vector<at::Tensor> written, stays;  // the stack lets go of arguments
  for (const auto& place : op.outside_writes) written.push_back(args[place.index].toTensor());
  for (const auto& place : op.keep)
    stays.push_back(place.output ? at::Tensor() : args[place.index].toTensor());
  handle.redispatchBoxed(keys & kBelow, stack);
  run.at++;
  enter_made(run, op, *stack);
  for (size_t i = 0; i < written.size(); i++)  // the counter moves once this op has returned
    run.outside[op.outside_writes[i].ordinal] = {written[i], version_of(written[i]) + 1, {}};
  for (size_t i = 0; i < stays.size(); i++) {
    const auto& place = op.keep[i];
    auto tensor = place.output ? nth_output(op, *stack, place.index) : stays[i];
    int64_t version = place.output ? 0 : version_of(tensor) + 1;
    run.kept.push_back({place.value, std::move(tensor), version});
  }
}

// -- handing over ------------------------------------------------------------------------------

// Make the Python path take the run over. Called with the GIL.
inline void hand_over(Run& run) {
  run.phase = Phase::paused;
  run.python = PyObject_CallOneArg(callbacks.hand_over, run.tape);
  if (run.python == nullptr) throw py::error_already_set();
  run.phase = Phase::python;
}

inline bool is_ignored(const c10::OperatorHandle& op) {  // it makes no memory and writes none
  static thread_local std::unordered_map<c10::OperatorHandle, bool> known;
  auto found = known.find(op);
  if (found != known.end()) return found->second;
  py::gil_scoped_acquire gil;
  auto told = py::reinterpret_steal<py::object>(
      PyObject_CallOneArg(callbacks.ignored, torch::detail::getTorchApiFunction(op).ptr()));
  if (!told) throw py::error_already_set();
  return known[op] = told.cast<bool>();
}

// Run an op through the Python tape, as a dispatch mode would: it is on the stack of modes for this
// op only, so that it does not matter at which nesting level the run was handed over.
inline void run_in_python(Run& run, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  py::gil_scoped_acquire gil;
  if (run.phase == Phase::following) {
    c10::impl::ExcludeDispatchKeyGuard guard(kNotBelow);
    hand_over(run);
  }
  constexpr auto python = c10::DispatchKeySet(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  auto before = c10::impl::tls_local_dispatch_key_set();
  auto within = before;
  within.excluded_ = (before.excluded_ | kNotBelow) - python;
  c10::impl::ForceDispatchKeyGuard guard(within);
  auto call = [](PyObject* function, PyObject* argument) {
    auto done = py::reinterpret_steal<py::object>(
        PyObject_CallFunctionObjArgs(function, argument, nullptr));
    if (!done) throw py::error_already_set();
  };
  call(callbacks.push_mode, run.python);
  try {
    py::gil_scoped_release others;
    op.callBoxed(stack);
  } catch (...) {
    call(callbacks.pop_mode, nullptr);
    throw;
  }
  call(callbacks.pop_mode, nullptr);
}

inline void fallback(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Run* run = current;
  if (run == nullptr) c10::impl::tls_set_dispatch_key_included(kKey, false);
  bool ours = run != nullptr && (run->phase == Phase::following || run->phase == Phase::python);
  c10::impl::ExcludeDispatchKeyGuard guard(ours ? kNotWithin : c10::DispatchKeySet(kKey));
  if (ours && run->phase == Phase::following) {
    const auto& ops = run->plan->ops;
    size_t at = run->at;
    if (at < ops.size() && ops[at].call.op == op) {
      const auto& wanted = ops[at];
      const auto* args = stack->data() + (stack->size() - wanted.call.entries.size());
      if (run->slots.size() == wanted.slots && same_call(*run, wanted, args)) {
        run_op(*run, wanted, op, keys, stack);
        return;
      }
      run->roll_back(wanted.slots);
    }
  }
  if (!ours || is_ignored(op)) {
    op.redispatchBoxed(keys & kBelow, stack);
  } else {
    run_in_python(*run, op, stack);
  }
}

// -- what autograd packs -----------------------------------------------------------------------

// Whether autograd packs what was recorded; the caller hands over when it does not.
inline bool same_pack(Run& run, const at::Tensor& tensor) {
  const auto& packs = run.plan->packs;
  if (static_cast<size_t>(run.packed) >= packs.size()) return false;
  const auto& pack = packs[run.packed];
  if (pack.at != run.at) return false;
  if (pack.stays) return true;
  if (run.slots.size() == pack.slots && is_plain(tensor) &&
      same_tensor(run, run.plan->args[pack.arg], tensor))
    return true;
  run.roll_back(pack.slots);
  return false;
}

// -- closing -----------------------------------------------------------------------------------

inline Source source_of(const Run& run, int ordinal) {
  const auto& plan = *run.plan;
  int value = plan.source_value[ordinal], outside = plan.source_outside[ordinal];
  if (outside >= 0 && run.copies[outside].defined())
    return {run.copies[outside], Source::Is::copy, 0, {}};
  for (auto kept = run.kept.rbegin(); kept != run.kept.rend(); ++kept) {
    if (kept->value != value) continue;
    auto tensor = detached(kept->tensor);
    return {tensor, Source::Is::versioned, kept->version, take_sample(tensor)};
  }
  TORCH_CHECK(outside >= 0 && run.outside[outside].tensor.defined(), "a source was never read");
  const auto& found = run.outside[outside];
  const auto& storage = run.storages[plan.outside_slot[outside]];
  if (found.tensor.numel() && !storage.nbytes())
    return {detached(found.tensor), Source::Is::freed, 0, {}};
  bool there = storage_of(found.tensor) == storage.unsafeGetStorageImpl();
  const auto& arg = plan.args[plan.source_arg[ordinal]];
  auto tensor = there ? detached(found.tensor)
                      : view_on(
                            storage, found.tensor.unsafeGetTensorImpl()->key_set(), arg.dtype,
                            arg.size, arg.stride, arg.offset);
  return {
      tensor, Source::Is::versioned, there ? found.version : version_of(tensor),
      found.sample.count ? found.sample : take_sample(tensor)};
}

// Leave behind what replays need. The run is complete.
inline void finish(Run& run) {
  auto& state = *run.state;
  if (run.plan->drops)
    for (size_t i = 0; i < run.plan->source_value.size(); i++)
      state.sources.push_back(source_of(run, static_cast<int>(i)));
  state.closed = true;
  state.tape = nullptr;
}

}  // namespace planner
