// What one followed run leaves behind for backward, and the replay itself.
//
// The counterpart of `state.py` and `replaying.py`, with the same order of freeing. A placeholder
// in autograd's graph holds the state; nothing points the other way. A replay holds the state's
// lock and not the GIL; who waits for the lock lets go of the GIL first.
#pragma once

#include "values.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/graph_task.h>

#include <mutex>
#include <unordered_map>

namespace planner {

struct Callbacks {  // functions of `tape.py`, set once
  PyObject *replay, *bad_source, *bad_delivery, *bad_kept, *unpack, *kept, *ignored, *hidden,
      *push_mode, *pop_mode, *hand_over, *parameter;
};
inline Callbacks callbacks{};

struct Source {
  enum class Is : uint8_t { absent, copy, versioned, freed };
  at::Tensor tensor;
  Is is = Is::absent;
  int64_t version = 0;
  Sample sample;
};

struct Delivered {
  at::Tensor tensor;
  int64_t version = 0;
  Sample sample;
};

struct State {
  std::shared_ptr<const Template> plan;
  std::vector<Source> sources;
  std::vector<Delivered> delivered;
  std::vector<int> placeholders, servings, source_uses, cell_uses;
  std::vector<bool> replayed_groups;
  std::vector<at::Tensor> draws;
  std::unordered_map<int, std::vector<c10::IValue>> calls;  // constants of this step's own
  int kept_servings = 0;  // how many values count their servings
  bool closed = false;
  std::recursive_mutex mutex;
  PyObject *name = nullptr, *surroundings = nullptr;
  PyObject* python = nullptr;  // what serves instead, after a run was handed over
  PyObject* tape = nullptr;    // borrowed, while the run is open

  explicit State(std::shared_ptr<const Template> t) : plan(std::move(t)) {
    delivered.resize(plan->deliveries);
    placeholders.assign(plan->deliveries, 0);
    servings.assign(plan->deliveries, -1);
    source_uses = plan->source_uses;
    cell_uses = plan->cell_uses;
    replayed_groups.assign(plan->groups.size(), false);
    draws.resize(plan->draws);
  }
  ~State() {
    Py_XDECREF(name);
    Py_XDECREF(surroundings);
    Py_XDECREF(python);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

// The state's lock, taken by a thread that holds the GIL.
class Locked {
 public:
  explicit Locked(State& state) : lock_(state.mutex, std::try_to_lock) {
    if (!lock_.owns_lock()) {
      py::gil_scoped_release others;
      lock_.lock();
    }
  }
  void unlock() { lock_.unlock(); }

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

[[noreturn]] inline void raise(PyObject* function, const py::tuple& args) {
  auto done = py::reinterpret_steal<py::object>(PyObject_CallObject(function, args.ptr()));
  if (done) throw std::runtime_error("a check failed, and then did not");
  throw py::error_already_set();
}

inline py::object wrapped(const at::Tensor& tensor) {
  if (!tensor.defined()) return py::none();
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
}

// A source's tensor, if it is what the forward read. Called without the GIL.
inline at::Tensor checked_source(const State& state, int ordinal) {
  const auto& source = state.sources[ordinal];
  const auto& tensor = source.tensor;
  bool good = source.is != Source::Is::absent && source.is != Source::Is::freed &&
      (tensor.numel() == 0 || tensor.storage().nbytes() > 0);
  bool same_version = good &&
      (source.is == Source::Is::copy || version_of(tensor) == source.version);
  if (same_version && (!source.sample.count || take_sample(tensor) == source.sample))
    return tensor;
  py::gil_scoped_acquire gil;
  raise(
      callbacks.bad_source,
      py::make_tuple(
          py::reinterpret_borrow<py::object>(state.name), wrapped(tensor), source.version,
          source.is == Source::Is::freed, same_version));
}

inline const at::Tensor& checked_delivery(const State& state, const Delivered& found) {
  if (version_of(found.tensor) == found.version &&
      (!found.sample.count || take_sample(found.tensor) == found.sample))
    return found.tensor;
  py::gil_scoped_acquire gil;
  raise(
      callbacks.bad_delivery,
      py::make_tuple(
          py::reinterpret_borrow<py::object>(state.name), wrapped(found.tensor), found.version));
}

inline std::recursive_mutex drawing;  // devices replay in threads of their own

// A generator that holds the state of the forward's draw for as long as this lives.
class Redraw {
 public:
  Redraw(c10::Device device, const at::Tensor& drawn)
      : lock_(drawing), generator_(at::globalContext().defaultGenerator(device)) {
    if (device.is_cuda()) {  // see `replaying.py`
      auto other = generator_.clone();
      other.set_state(drawn);
      before_ = generator_.graphsafe_get_state();
      generator_.graphsafe_set_state(other);
    } else {
      std::lock_guard<std::mutex> mine(generator_.mutex());
      state_ = generator_.get_state();
      generator_.set_state(drawn);
    }
  }
  ~Redraw() {
    if (before_.defined()) {
      generator_.graphsafe_set_state(before_);
    } else {
      std::lock_guard<std::mutex> mine(generator_.mutex());
      generator_.set_state(state_);
    }
  }
  Redraw(const Redraw&) = delete;
  Redraw& operator=(const Redraw&) = delete;

 private:
  std::lock_guard<std::recursive_mutex> lock_;
  at::Generator generator_, before_;
  at::Tensor state_;
};

using Env = std::vector<at::Tensor>;  // by value

inline void push_arguments(
    const Template& plan, const Call& call, const std::vector<c10::IValue>* own, const Env& env,
    torch::jit::Stack& stack) {
  auto tensor = [&](int arg) {
    return rebuild(env[plan.args[arg].value], plan.args[arg], false);
  };
  for (size_t i = 0; i < call.entries.size(); i++) {
    const auto& entry = call.entries[i];
    if (entry.kind == Kind::tensor) {
      stack.emplace_back(tensor(entry.arg));
    } else if (entry.kind == Kind::constant) {
      stack.push_back(own && entry.number ? (*own)[i] : entry.constant);
    } else if (entry.kind == Kind::wrapped) {
      stack.emplace_back(wrap_number(own ? (*own)[i] : entry.constant));
    } else if (entry.kind == Kind::statistic) {
      stack.emplace_back();
    } else if (entry.optional_items) {
      c10::List<std::optional<at::Tensor>> list;
      for (int item : entry.items)
        list.push_back(item < 0 ? std::nullopt : std::make_optional(tensor(item)));
      stack.emplace_back(std::move(list));
    } else {
      c10::List<at::Tensor> list;
      for (int item : entry.items) list.push_back(tensor(item));
      stack.emplace_back(std::move(list));
    }
  }
}

inline void enter_results(const Op& op, torch::jit::Stack& stack, Env& env) {
  size_t flat = 0;
  auto enter = [&](const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined() || flat >= op.made.size()) return;
    int made = op.made[flat++];
    if (made >= 0) env[made] = value.toTensor();
  };
  for (const auto& value : stack) {
    if (value.isTensorList()) {
      for (const auto& item : value.toListRef()) enter(item);
    } else {
      enter(value);
    }
  }
}

inline void run_step(const State& state, const Step& step, Env& env) {
  const auto& plan = *state.plan;
  const auto& op = plan.ops[step.op];
  std::vector<at::Tensor> originals;
  for (int key : step.copies) {
    originals.push_back(env[key]);
    env[key] = copy_storage(env[key]);
  }
  torch::jit::Stack stack;
  auto own = state.calls.find(step.op);
  push_arguments(
      plan, op.again ? *op.again : op.call,
      op.again || own == state.calls.end() ? nullptr : &own->second, env, stack);
  if (op.random) {
    Redraw redraw(op.device, state.draws[op.draw]);
    op.call.op.callBoxed(&stack);
  } else {
    (op.again ? *op.again : op.call).op.callBoxed(&stack);
  }
  for (auto [before, after] : op.writes) env[after] = env[before];
  for (size_t i = 0; i < originals.size(); i++) env[step.copies[i]] = std::move(originals[i]);
  enter_results(op, stack, env);
}

inline void release(State& state, int value) {  // one group is done with a borrowed value
  const auto& plan = *state.plan;
  at::Tensor freed;
  int source = plan.source_of[value], delivery = plan.delivery_of[value];
  if (source >= 0) {
    if (--state.source_uses[source] <= 0) {
      freed = std::move(state.sources[source].tensor);
      state.sources[source] = Source();
    }
  } else if (delivery >= 0) {
    if (--state.cell_uses[delivery] <= 0 && state.placeholders[delivery] <= 0) {
      freed = std::move(state.delivered[delivery].tensor);
      state.delivered[delivery] = Delivered();
    }
  }
}

inline void deliver(State& state, int value, const at::Tensor& tensor, bool keep_graph) {
  int at = state.plan->delivery_of[value];
  bool cell = state.cell_uses[at] > 0;
  if (!cell && state.placeholders[at] <= 0) return;
  state.delivered[at] = {tensor, version_of(tensor), cell ? take_sample(tensor) : Sample()};
  if (keep_graph) {
    state.kept_servings += state.servings[at] < 0;
    state.servings[at] = 0;
  }
}

// Replay a group, and before it the groups that make what it reads; returns how many ops ran.
inline size_t run_group(State& state, int number, bool keep_graph) {
  const auto& plan = *state.plan;
  const auto& group = plan.groups[number];
  size_t count = group.steps.size();
  Env env(plan.values);
  for (int key : group.sources) env[key] = checked_source(state, plan.source_of[key]);
  for (int key : group.cells) {
    const auto& found = state.delivered[plan.delivery_of[key]];
    if (!found.tensor.defined()) count += run_group(state, plan.owner[key], keep_graph);
    env[key] = checked_delivery(state, found);
  }
  bool last = !keep_graph && !state.replayed_groups[number];
  if (last) state.replayed_groups[number] = true;
  for (const auto& step : group.steps) {
    run_step(state, step, env);
    for (size_t i = 0; i < step.frees.size(); i++) {
      env[step.frees[i]] = at::Tensor();
      if (last && step.releases[i]) release(state, step.frees[i]);
    }
  }
  for (int key : group.makes) deliver(state, key, env[key], keep_graph);
  return count;
}

// A placeholder of this value is gone.
inline at::Tensor forget(State& state, int value) {
  int at = state.plan->delivery_of[value];
  at::Tensor freed;
  if (--state.placeholders[at] <= 0 && state.cell_uses[at] <= 0) {
    freed = std::move(state.delivered[at].tensor);
    state.delivered[at] = Delivered();
  }
  return freed;
}

// When the graph is kept, a value goes after each placeholder has been served once.
inline void count_serving(State& state, int at) {
  if (state.servings[at] < 0) return;
  if (++state.servings[at] >= state.placeholders[at] && state.cell_uses[at] <= 0) {
    state.servings[at] = -1;
    state.kept_servings--;
    state.delivered[at] = Delivered();
  }
}

}  // namespace planner
