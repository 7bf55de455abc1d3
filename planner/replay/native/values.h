// Tensors as values: aliases, views on a storage, copies, samples of content, comparisons.
#pragma once

#include "template.h"

#include <cmath>
#include <cstring>

namespace planner {

inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// Whether a tensor has what is compared: a storage, strides and a version counter.
inline bool comparable(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return tensor.defined() && impl->has_storage() && impl->layout() == c10::kStrided &&
      !impl->has_symbolic_sizes_strides() && impl->version_counter().enabled() &&
      !impl->key_set().has_any(c10::DispatchKeySet(
          {c10::DispatchKey::NestedTensor, c10::DispatchKey::Python, c10::DispatchKey::Functionalize}));
}

inline int64_t version_of(const at::Tensor& tensor) {
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? counter.current_version() : 0;
}

// An alias without a graph, with the same version counter.
inline at::Tensor detached(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), false));
}

inline at::Tensor view_on(
    const c10::Storage& storage, c10::DispatchKeySet keys, c10::ScalarType dtype,
    c10::IntArrayRef size, c10::IntArrayRef stride, int64_t offset) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(storage), keys, c10::scalarTypeToTypeMeta(dtype));
  view.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return view;
}

// The view `arg` of the storage of `base`; `shared`: with the version counter of `base`.
inline at::Tensor rebuild(const at::Tensor& base, const Arg& arg, bool shared) {
  if (arg.direct) return base;
  auto* impl = base.unsafeGetTensorImpl();
  TORCH_CHECK(
      static_cast<int64_t>(base.storage().nbytes()) >= arg.extent_bytes,
      "a tensor that a replay made is smaller than the one that backward needs: ",
      base.storage().nbytes(), " bytes made, ", arg.extent_bytes, " needed");
  if (!base.is_cpu() && !base.is_cuda()) {  // their views may be of other kinds
    return base.as_strided(arg.size, arg.stride, arg.offset);
  }
  auto view =
      view_on(base.storage(), impl->key_set(), arg.dtype, arg.size, arg.stride, arg.offset);
  if (shared && impl->version_counter().enabled())
    view.unsafeGetTensorImpl()->set_version_counter(impl->version_counter());
  return view;
}

// A tensor of the same geometry on a copy of the whole storage.
inline at::Tensor copy_storage(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  auto bytes = static_cast<int64_t>(storage.nbytes());
  auto keys = tensor.unsafeGetTensorImpl()->key_set();
  auto copy = at::empty({bytes}, tensor.options().dtype(at::kByte));
  copy.copy_(view_on(storage, keys, at::kByte, {bytes}, {1}, 0));
  return view_on(
      copy.storage(), keys, tensor.scalar_type(), tensor.sizes(), tensor.strides(),
      tensor.storage_offset());
}

struct Sample {  // a few words of a tensor's content, as the Python path reads them
  int count = 0;  // 0: not taken; 1: one number; 4: four words
  uint64_t words[4] = {0, 0, 0, 0};
  bool operator==(const Sample& other) const {
    return count == other.count && std::memcmp(words, other.words, sizeof(words)) == 0;
  }
};

inline Sample take_sample(const at::Tensor& tensor) {
  Sample found;
  if (!tensor.is_cpu()) return found;
  found.count = 1;
  const auto& storage = tensor.storage();
  size_t size = storage.nbytes();
  const char* address = static_cast<const char*>(storage.data());
  if (tensor.is_contiguous()) {
    size_t start = tensor.storage_offset() * tensor.element_size();
    if (start + tensor.nbytes() > size) return found;  // the memory was freed
    size = tensor.nbytes();
    address += start;
  }
  if (!storage.data()) return found;
  if (size < 8) {
    std::memcpy(found.words, address, size);
    return found;
  }
  found.count = 4;
  size_t last = size - 8, third = last / 3;
  for (size_t i = 0; i < 4; i++) {
    const size_t places[] = {0, third, last - third, last};
    std::memcpy(&found.words[i], address + places[i], 8);
  }
  return found;
}

// Whether two constants are the same; zeros have signs, and NaN equals nothing.
inline bool same_constant(const c10::IValue& wanted, const c10::IValue& got) {
  if (wanted.isNone()) return got.isNone() || (got.isTensor() && !got.toTensor().defined());
  if (wanted.isInt()) return got.isInt() && wanted.toInt() == got.toInt();
  if (wanted.isBool()) return got.isBool() && wanted.toBool() == got.toBool();
  if (wanted.isDouble()) {
    return got.isDouble() && wanted.toDouble() == got.toDouble() &&
        std::signbit(wanted.toDouble()) == std::signbit(got.toDouble());
  }
  if (wanted.isString()) return got.isString() && wanted.toStringRef() == got.toStringRef();
  if (wanted.isDevice()) return got.isDevice() && wanted.toDevice() == got.toDevice();
  if (wanted.isGenerator()) return got.isGenerator();
  if (wanted.isList()) {
    if (!got.isList()) return false;
    auto these = wanted.toListRef(), those = got.toListRef();
    if (these.size() != those.size()) return false;
    for (size_t i = 0; i < these.size(); i++)
      if (!same_constant(these[i], those[i])) return false;
    return true;
  }
  return false;  // the Python path looks at the rest
}

// The number that torch wrapped into a tensor (`x * 0.5`), None if it did not.
inline c10::IValue unwrapped(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return {};
  const auto& tensor = value.toTensor();
  if (!tensor.unsafeGetTensorImpl()->is_wrapped_number() || !tensor.is_cpu()) return {};
  const void* data = tensor.const_data_ptr();
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return *static_cast<const double*>(data);
    case at::kLong:
      return *static_cast<const int64_t*>(data);
    case at::kBool:
      return *static_cast<const bool*>(data);
    default:
      return {};  // the Python path looks at the rest
  }
}

inline at::Tensor wrap_number(const c10::IValue& number) {
  auto tensor = c10::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

inline bool both_numbers(const c10::IValue& wanted, const c10::IValue& got) {
  return (wanted.isInt() && got.isInt()) || (wanted.isDouble() && got.isDouble());
}

// Storages seen in an open run: by slot, and slots by address. Each is pinned by a weak
// reference, so that its address is not given to another one.
class Slots {
 public:
  struct Slot {
    c10::StorageImpl* storage;
    int64_t base;
  };

  Slots() = default;
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;
  ~Slots() { clear(0); }

  void reserve(size_t count) {
    slots_.reserve(count);
    size_t size = 16;
    while (size < 3 * count) size *= 2;
    table_.assign(size, -1);
  }

  size_t size() const { return slots_.size(); }
  const Slot& operator[](size_t slot) const { return slots_[slot]; }
  bool aliased() const { return aliased_; }

  int find(c10::StorageImpl* storage) const {
    for (size_t at = hash(storage);; at++) {
      int slot = table_[at & (table_.size() - 1)];
      if (slot < 0) return -1;
      if (slots_[slot].storage == storage) return newest_[slot];
    }
  }

  void add(c10::StorageImpl* storage, int64_t base) {
    if (3 * (slots_.size() + 1) > 2 * table_.size()) grow();
    int slot = static_cast<int>(slots_.size());
    slots_.push_back({c10::raw::intrusive_ptr::make_weak(storage), base});
    newest_.push_back(slot);
    enter(slot);
  }

  void clear(size_t count) {  // forget the slots from `count` on
    if (slots_.size() <= count) return;
    while (slots_.size() > count) {
      c10::raw::weak_intrusive_ptr::decref(slots_.back().storage);
      slots_.pop_back();
      newest_.pop_back();
    }
    rehash();
  }

  void release() {  // the pins belong to somebody else now
    slots_.clear();
    newest_.clear();
  }

 private:
  static size_t hash(c10::StorageImpl* storage) {
    return (reinterpret_cast<uintptr_t>(storage) >> 4) * 0x9E3779B97F4A7C15ull >> 32;
  }

  void enter(int slot) {
    for (size_t at = hash(slots_[slot].storage);; at++) {
      int& place = table_[at & (table_.size() - 1)];
      if (place >= 0 && slots_[place].storage == slots_[slot].storage) {
        newest_[place] = slot;  // an op returned what was known, where it had made a new one
        aliased_ = true;
        return;
      }
      if (place < 0) {
        place = slot;
        return;
      }
    }
  }

  void grow() {
    table_.assign(2 * table_.size(), -1);
    rehash();
  }

  void rehash() {
    std::fill(table_.begin(), table_.end(), -1);
    for (size_t slot = 0; slot < slots_.size(); slot++) {
      newest_[slot] = static_cast<int>(slot);
      enter(static_cast<int>(slot));
    }
  }

  std::vector<Slot> slots_;
  std::vector<int> newest_, table_;
  bool aliased_ = false;
};

}  // namespace planner
