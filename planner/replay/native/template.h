// A recorded program as flat tables: what following compares and what replaying runs.
//
// Built once per program from a description in Python (see `describe.py`), immutable afterwards,
// shared by all runs and all threads. Values, the (slot, version) pairs of the Python path, are
// numbered; ordinals of outside values, sources and delivered values index the tables of a run.
#pragma once

#include <ATen/Context.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <optional>
#include <vector>

namespace torch::jit {
TORCH_PYTHON_API c10::IValue toIValue(
    py::handle obj, const c10::TypePtr& type, std::optional<int32_t> N);
}

namespace planner {

struct Arg {  // a tensor argument: the value, and the view through which it is read
  int slot, value;
  std::vector<int64_t> size, stride;
  int64_t offset;
  c10::ScalarType dtype;
  int64_t counter;
  bool first, new_slot;
  c10::Device device{c10::kCPU};
  bool direct, source;
  int64_t extent_bytes;  // what the storage must hold
  int outside;           // ordinal of an outside value, when first
};

enum class Kind : uint8_t { tensor, list, statistic, constant, wrapped };  // a number as tensor

struct Entry {  // one argument of a call, in schema order
  Kind kind;
  bool number;  // a constant that may change from step to step
  int arg = -1;
  bool optional_items;     // a list in which None may stand
  std::vector<int> items;  // of a list: arguments, -1 for None
  c10::IValue constant;
};

struct Call {
  c10::OperatorHandle op;
  std::vector<Entry> entries;
};

struct Place {  // a value and where a call shows its tensor: an output or an argument
  bool output;
  int index, value, ordinal;
};

struct Op {
  Call call;
  std::optional<Call> again;  // what a replay runs where it is not the op itself
  size_t slots;
  bool busy, random;
  int draw;  // ordinal of the generator state to save, or -1
  c10::Device device{c10::kCPU};
  std::vector<int> outs;                    // slot of each flat output, or -1
  std::vector<int> made;                    // value of each flat output, or -1
  std::vector<std::pair<int, int>> writes;  // (old, new) values
  std::vector<int> copied;                  // outside values to copy before the op (ordinals)
  std::vector<int> hidden;                  // positions of statistics that the op updates
  std::vector<Place> outside_writes, keep;
};

struct Pack {
  int at, arg;
  bool dropped, stays;
  size_t slots;
};

struct Step {
  int op;
  std::vector<int> copies, frees;
  std::vector<bool> releases;  // whether each freed value was borrowed from the state
};

struct Group {
  std::vector<Step> steps;
  std::vector<int> sources, cells, makes;
};

struct Template {
  std::vector<Arg> args;
  std::vector<Op> ops;
  std::vector<Pack> packs;
  std::vector<Group> groups;
  std::vector<int> owner, source_of, delivery_of;  // by value; -1 where there is none
  std::vector<int> outside_value, outside_slot;    // by ordinal
  std::vector<int> source_value, source_outside;   // by ordinal of a source; -1 if not outside
  std::vector<int> source_arg;                     // some argument that reads it
  std::vector<int> source_uses, cell_uses;         // by ordinals of sources and deliveries
  size_t values = 0, draws = 0, deliveries = 0, slots = 0;
  bool drops = false;
};

inline bool is_number(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::NumberType:
      return true;
    case c10::TypeKind::OptionalType:
      return is_number(type->castRaw<c10::OptionalType>()->getElementType());
    default:
      return false;
  }
}

inline Entry read_entry(const py::tuple& told, const c10::Argument& argument) {
  Entry entry{};
  entry.kind = static_cast<Kind>(told[0].cast<int>());
  if (entry.kind == Kind::tensor) {
    entry.arg = told[1].cast<int>();
  } else if (entry.kind == Kind::list) {
    entry.items = told[1].cast<std::vector<int>>();
    const auto* list = argument.type()->castRaw<c10::ListType>();
    TORCH_CHECK(list != nullptr, "tensors in an argument that is no list");
    entry.optional_items = list->getElementType()->kind() == c10::TypeKind::OptionalType;
  } else if (entry.kind == Kind::wrapped) {
    entry.constant =
        torch::jit::toIValue(py::object(told[1]), c10::NumberType::get(), std::nullopt);
    entry.number = true;
  } else if (entry.kind == Kind::constant && told[1].cast<bool>()) {
    entry.constant = torch::jit::toIValue(py::object(told[2]), argument.type(), argument.N());
    entry.number = is_number(argument.real_type());
  } else if (entry.kind == Kind::constant) {
    TORCH_CHECK(argument.default_value().has_value(), "no default for ", argument.name());
    entry.constant = *argument.default_value();
  }
  return entry;
}

inline Call read_call(const py::tuple& told) {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      told[0].cast<std::string>().c_str(), told[1].cast<std::string>().c_str());
  Call call{op, {}};
  const auto& arguments = op.schema().arguments();
  py::list entries = told[2];
  TORCH_CHECK(entries.size() == arguments.size(), "another schema than was recorded");
  for (size_t i = 0; i < arguments.size(); i++)
    call.entries.push_back(read_entry(entries[i].cast<py::tuple>(), arguments[i]));
  return call;
}

inline std::vector<Place> read_places(const py::handle& told) {
  std::vector<Place> places;
  for (auto item : told) {
    auto [output, index, value, ordinal] = item.cast<std::tuple<bool, int, int, int>>();
    places.push_back({output, index, value, ordinal});
  }
  return places;
}

inline c10::Device read_device(const py::handle& told) {
  return torch::jit::toIValue(told, c10::DeviceObjType::get(), std::nullopt).toDevice();
}

inline Arg read_arg(const py::dict& told) {
  Arg arg{};
  arg.slot = told["slot"].cast<int>();
  arg.value = told["value"].cast<int>();
  arg.size = told["size"].cast<std::vector<int64_t>>();
  arg.stride = told["stride"].cast<std::vector<int64_t>>();
  arg.offset = told["offset"].cast<int64_t>();
  auto dtype = torch::jit::toIValue(told["dtype"], c10::IntType::get(), std::nullopt);
  arg.dtype = static_cast<c10::ScalarType>(dtype.toInt());
  arg.counter = told["counter"].cast<int64_t>();
  arg.first = told["first"].cast<bool>();
  arg.new_slot = told["new_slot"].cast<bool>();
  arg.device = read_device(told["device"]);
  arg.direct = told["direct"].cast<bool>();
  arg.source = told["source"].cast<bool>();
  arg.outside = told["outside"].cast<int>();
  int64_t last = arg.offset;
  bool empty = false;
  for (size_t i = 0; i < arg.size.size(); i++) {
    last += (arg.size[i] - 1) * arg.stride[i];
    empty |= arg.size[i] == 0;
  }
  arg.extent_bytes = empty ? 0 : (last + 1) * static_cast<int64_t>(c10::elementSize(arg.dtype));
  return arg;
}

inline Op read_op(const py::dict& told) {
  Op op{read_call(told["call"]), std::nullopt};
  if (!told["again"].is_none()) op.again = read_call(told["again"]);
  op.slots = told["slots"].cast<size_t>();
  op.busy = told["busy"].cast<bool>();
  op.random = told["random"].cast<bool>();
  op.draw = told["draw"].cast<int>();
  op.device = read_device(told["device"]);
  op.outs = told["outs"].cast<std::vector<int>>();
  op.made = told["made"].cast<std::vector<int>>();
  op.writes = told["writes"].cast<std::vector<std::pair<int, int>>>();
  op.copied = told["copied"].cast<std::vector<int>>();
  op.hidden = told["hidden"].cast<std::vector<int>>();
  op.outside_writes = read_places(told["outside_writes"]);
  op.keep = read_places(told["keep"]);
  return op;
}

inline Group read_group(const py::dict& told) {
  Group group;
  group.sources = told["sources"].cast<std::vector<int>>();
  group.cells = told["cells"].cast<std::vector<int>>();
  group.makes = told["makes"].cast<std::vector<int>>();
  auto borrowed = group.sources;
  borrowed.insert(borrowed.end(), group.cells.begin(), group.cells.end());
  for (auto item : told["steps"]) {
    auto [op, copies, frees] = item.cast<std::tuple<int, std::vector<int>, std::vector<int>>>();
    Step step{op, copies, frees, {}};
    for (int key : frees)
      step.releases.push_back(std::find(borrowed.begin(), borrowed.end(), key) != borrowed.end());
    group.steps.push_back(std::move(step));
  }
  return group;
}

inline std::shared_ptr<const Template> read_template(const py::dict& told) {
  auto found = std::make_shared<Template>();
  for (auto arg : told["args"]) found->args.push_back(read_arg(arg.cast<py::dict>()));
  for (auto op : told["ops"]) found->ops.push_back(read_op(op.cast<py::dict>()));
  for (auto item : told["packs"]) {
    auto [at, arg, dropped, stays, slots] = item.cast<std::tuple<int, int, bool, bool, size_t>>();
    found->packs.push_back({at, arg, dropped, stays, slots});
    found->drops |= dropped;
  }
  for (auto group : told["groups"]) found->groups.push_back(read_group(group.cast<py::dict>()));
  using Numbers = std::vector<int>;
  found->owner = told["owner"].cast<Numbers>();
  found->source_of = told["source_of"].cast<Numbers>();
  found->delivery_of = told["delivery_of"].cast<Numbers>();
  found->outside_value = told["outside_value"].cast<Numbers>();
  found->outside_slot = told["outside_slot"].cast<Numbers>();
  found->source_value = told["source_value"].cast<Numbers>();
  found->source_outside = told["source_outside"].cast<Numbers>();
  found->source_arg = told["source_arg"].cast<Numbers>();
  found->source_uses = told["source_uses"].cast<Numbers>();
  found->cell_uses = told["cell_uses"].cast<Numbers>();
  found->values = found->owner.size();
  found->draws = told["draws"].cast<size_t>();
  found->deliveries = found->cell_uses.size();
  found->slots = told["slots"].cast<size_t>();
  return found;
}

}  // namespace planner
