// An accelerator that does not exist: its memory is host memory that only its own allocator counts,
// its kernels are the CPU's, and backward runs in a thread of its own, as on any accelerator.
//
// What it does as a GPU does: blocks of 512 bytes, a peak that the allocator keeps, a capacity to
// run out of, memory that a library takes at its first matrix product in a thread and keeps (and
// more at the first one with a bias), workspaces inside kernels, a default generator for each
// device, streams and timed events. It heeds torch's allocator setting `expandable_segments`.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <chrono>
#include <mutex>
#include <set>
#include <unordered_map>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
using c10::StreamId;

constexpr auto kSim = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kDevices = 2;
constexpr size_t kBlock = 512;                // what the allocator hands out multiples of
constexpr size_t kSmall = size_t{1} << 20;    // up to here memory comes from segments of a page
constexpr size_t kPage = size_t{1} << 21;     // what it reserves multiples of
constexpr size_t kLibrary = size_t{1} << 16;  // what a library keeps once a thread used it
constexpr size_t kBiased = size_t{1} << 17;   // and besides, once it added a bias
constexpr size_t kWorkspace = 40000;          // what a convolution takes while it runs

thread_local DeviceIndex current_device = 0;
thread_local std::array<StreamId, kDevices> current_stream{};

// --- memory -----------------------------------------------------------------------------------

// Rounds, splits, reuses and counts as torch's caching allocator for CUDA does.
struct SimAllocator final : c10::DeviceAllocator {
  struct Block {
    char* begin;
    size_t bytes;
    DeviceIndex device;
    bool small, used = false;
    Block *before = nullptr, *after = nullptr;  // in its segment
  };
  struct Smaller {
    bool operator()(const Block* a, const Block* b) const {
      return std::make_pair(a->bytes, a->begin) < std::make_pair(b->bytes, b->begin);
    }
  };
  using Pool = std::set<Block*, Smaller>;

  std::mutex mutex;
  std::array<c10::CachingDeviceAllocator::DeviceStats, kDevices> stats;
  std::array<std::array<Pool, 2>, kDevices> free_blocks;
  std::unordered_map<void*, Block*> used_blocks;
  size_t capacity = size_t{1} << 36;
  bool asked = false;

  static bool expandable() {
    return c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments();
  }

  static SimAllocator& instance() {
    static auto* const one = new SimAllocator();  // outlives every tensor
    return *one;
  }

  static void release(void* pointer) {
    auto& all = instance();
    std::lock_guard<std::mutex> guard(all.mutex);
    Block* block = all.used_blocks.at(pointer);
    all.used_blocks.erase(pointer);
    all.stats[block->device].allocated_bytes[0].decrease(block->bytes);
    auto& pool = all.free_blocks[block->device][block->small];
    block->used = false;
    pool.insert(block);
    join(pool, block, block->after);
    join(pool, block->before, block);
  }

  // Make two free neighbours one.
  static void join(Pool& pool, Block* first, Block* second) {
    if (first == nullptr || second == nullptr || first->used || second->used) {
      return;
    }
    pool.erase(first);
    pool.erase(second);
    first->bytes += second->bytes;
    first->after = second->after;
    if (first->after != nullptr) {
      first->after->before = first;
    }
    pool.insert(first);
    delete second;
  }

  Block* segment(size_t bytes, DeviceIndex device, bool small) {
    const size_t size = small ? kPage
        : bytes < 5 * kPage   ? 10 * kPage
                              : (bytes + kPage - 1) / kPage * kPage;
    auto& reserved = stats[device].reserved_bytes[0];
    if (static_cast<size_t>(reserved.current) + size > capacity) {
      give_back(device);
    }
    const size_t wanted = static_cast<size_t>(reserved.current) + size;
    TORCH_CHECK_WITH(
        OutOfMemoryError, wanted <= capacity, "simulated device out of memory: ", wanted, " of ",
        capacity, " bytes");
    void* pointer = nullptr;
    TORCH_CHECK(posix_memalign(&pointer, kBlock, size) == 0, "the host is out of memory");
    reserved.increase(size);
    return new Block{static_cast<char*>(pointer), size, device, small};
  }

  void give_back(DeviceIndex device) {
    for (auto& pool : free_blocks[device]) {
      for (auto at = pool.begin(); at != pool.end();) {
        Block* block = *at;
        if (block->before != nullptr || block->after != nullptr) {
          ++at;
          continue;
        }
        at = pool.erase(at);
        stats[device].reserved_bytes[0].decrease(block->bytes);
        std::free(block->begin);
        delete block;
      }
    }
  }

  c10::DataPtr allocate(size_t bytes) override {
    std::lock_guard<std::mutex> guard(mutex);
    const Device where(kSim, current_device);
    asked = true;
    if (bytes == 0) {
      return {nullptr, nullptr, [](void*) {}, where};
    }
    const size_t size = (bytes + kBlock - 1) / kBlock * kBlock;
    const bool small = size <= kSmall;
    auto& pool = free_blocks[where.index()][small];
    Block key{nullptr, size, where.index(), small};
    const auto found = pool.lower_bound(&key);
    Block* block = found == pool.end() ? segment(size, where.index(), small) : *found;
    pool.erase(block);
    const size_t rest = block->bytes - size;
    if (small || expandable() ? rest >= kBlock : rest > kSmall) {
      auto* other = new Block{block->begin + size, rest, where.index(), small};
      other->before = block;
      other->after = block->after;
      if (other->after != nullptr) {
        other->after->before = other;
      }
      block->after = other;
      block->bytes = size;
      pool.insert(other);
    }
    block->used = true;
    used_blocks[block->begin] = block;
    stats[where.index()].allocated_bytes[0].increase(block->bytes);
    std::memset(block->begin, 0xAB, size);  // what was never written is no number
    return {block->begin, block->begin, &release, where};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool initialized() override { return asked; }
  void recordStream(const c10::DataPtr&, Stream) override {}
  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard<std::mutex> guard(mutex);
    for (DeviceIndex device = 0; device < kDevices; ++device) {
      give_back(device);
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex index) override {
    std::lock_guard<std::mutex> guard(mutex);
    return stats[index];
  }
  void resetAccumulatedStats(DeviceIndex index) override {
    std::lock_guard<std::mutex> guard(mutex);
    stats[index].allocated_bytes[0].reset_accumulated();
  }
  void resetPeakStats(DeviceIndex index) override {
    std::lock_guard<std::mutex> guard(mutex);
    stats[index].allocated_bytes[0].reset_peak();
    stats[index].reserved_bytes[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex index) override {
    std::lock_guard<std::mutex> guard(mutex);
    const auto taken = static_cast<size_t>(stats[index].reserved_bytes[0].current);
    return {capacity - taken, capacity};
  }
};

// --- devices, streams, events -----------------------------------------------------------------

struct SimEvent {
  std::chrono::steady_clock::time_point at;
};

struct SimGuard final : c10::impl::DeviceGuardImplInterface {
  static DeviceIndex swap(DeviceIndex index) {
    TORCH_CHECK(index < kDevices, "no such device: ", int(index));
    return std::exchange(current_device, index < 0 ? current_device : index);
  }
  c10::DeviceType type() const override { return kSim; }
  Device exchangeDevice(Device device) const override { return {kSim, swap(device.index())}; }
  Device getDevice() const override { return {kSim, current_device}; }
  void setDevice(Device device) const override { swap(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override {
    current_device = device.index();
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }

  static Device whole(Device device) {
    return {kSim, device.index() < 0 ? current_device : device.index()};
  }
  Stream getStream(Device device) const override {
    device = whole(device);
    return Stream(Stream::UNSAFE, device, current_stream[device.index()]);
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::UNSAFE, whole(device), 0);
  }
  Stream getNewStream(Device device, int) const override {
    static std::atomic<StreamId> next{1};
    return Stream(Stream::UNSAFE, whole(device), next++);
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return getNewStream(device, 0);
  }
  Stream exchangeStream(Stream stream) const override {
    const auto before = std::exchange(current_stream[stream.device_index()], stream.id());
    return Stream(Stream::UNSAFE, stream.device(), before);
  }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}

  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new SimEvent();
    }
    static_cast<SimEvent*>(*event)->at = std::chrono::steady_clock::now();
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<SimEvent*>(event);
  }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    const auto passed = static_cast<SimEvent*>(second)->at - static_cast<SimEvent*>(first)->at;
    return std::chrono::duration<double, std::milli>(passed).count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, SimGuard)

// --- random numbers ---------------------------------------------------------------------------

struct SimGenerator final : at::CPUGeneratorImpl {
  explicit SimGenerator(DeviceIndex index) {
    device_ = Device(kSim, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

const at::Generator& default_generator(DeviceIndex index) {
  static const std::array<at::Generator, kDevices> all = {
      at::make_generator<SimGenerator>(0), at::make_generator<SimGenerator>(1)};
  return all[index < 0 ? current_device : index];
}

struct SimHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(DeviceIndex index) const override { SimGuard::swap(index); }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return SimGuard::swap(index); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return SimGuard::swap(index);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<SimGenerator>(index < 0 ? current_device : index);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* found = storage.unsafeGetStorageImpl();
    auto fresh = SimAllocator::instance().allocate(bytes);
    const size_t kept = std::min(bytes, found->nbytes());
    if (kept > 0) {
      std::memcpy(fresh.mutable_get(), found->data(), kept);
    }
    found->set_data_ptr_noswap(std::move(fresh));
    found->set_nbytes(bytes);
  }
};

// --- kernels ----------------------------------------------------------------------------------

bool on_sim(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kSim;
}

at::Tensor shaped(at::Tensor made, const at::Tensor& like) {
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), like.storage_offset());
  made._set_conj(like.is_conj());
  made._set_neg(like.is_neg());
  return made;
}

// The same memory as a tensor of the CPU.
at::Tensor host(const at::Tensor& tensor) {
  auto* found = tensor.storage().unsafeGetStorageImpl();
  if (found->nbytes() == 0) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  }
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), found->nbytes(),
      c10::DataPtr(found->mutable_data(), Device(at::kCPU)));
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  return shaped(std::move(made), tensor);
}

// The result of a view on the host, as a view of the device's memory.
at::Tensor view_of(const at::Tensor& base, const at::Tensor& result) {
  const auto lazy = c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set() - lazy, result.dtype());
  return shaped(std::move(made), result);
}

at::Tensor empty_strided(
    c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, Device device) {
  const c10::impl::VirtualGuardImpl guard(kSim);
  const auto before = guard.exchangeDevice(SimGuard::whole(device));
  at::Tensor made = at::detail::empty_strided_generic(
      sizes, strides, &SimAllocator::instance(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
  guard.setDevice(before);
  return made;
}

at::Tensor to_sim(const at::Tensor& result, Device device) {
  auto made = empty_strided(result.sizes(), result.strides(), result.scalar_type(), device);
  if (result.storage().nbytes() > 0 && made.numel() > 0) {
    host(made).copy_(result);
  }
  return made;
}

void take_library_memory(bool biased = false) {
  thread_local std::array<c10::DataPtr*, 2> kept{};  // never given back
  if (kept[biased] == nullptr) {
    kept[biased] = new c10::DataPtr(SimAllocator::instance().allocate(biased ? kBiased : kLibrary));
  }
}

// Draws from the default CPU generator come from the device's own for as long as this lives.
struct Drawing {
  at::Generator device, cpu, before;
  explicit Drawing(at::Generator of)
      : device(std::move(of)), cpu(at::detail::getDefaultCPUGenerator()), before(cpu.clone()) {
    cpu.set_state(device.get_state());
  }
  ~Drawing() {
    device.set_state(cpu.get_state());
    cpu.set_state(before.get_state());
  }
};

// One call of a CPU kernel on a device's memory.
struct Call {
  std::vector<std::pair<at::Tensor, at::Tensor>> seen;  // of the device, and of the host
  Device device{kSim, current_device};
  std::vector<std::unique_ptr<Drawing>> drawing;

  at::Tensor lend(const at::Tensor& tensor) {
    if (!on_sim(tensor)) {
      return tensor;
    }
    device = tensor.device();
    seen.emplace_back(tensor, host(tensor));
    return seen.back().second;
  }

  void lend(c10::IValue& value) {
    if (value.isTensor()) {
      value = lend(value.toTensor());
    } else if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      for (auto& tensor : tensors) {
        tensor = lend(tensor);
      }
      value = c10::List<at::Tensor>(tensors);
    } else if (value.isOptionalTensorList()) {
      auto tensors = value.toOptionalTensorList().copy();
      for (size_t i = 0; i < tensors.size(); ++i) {
        const std::optional<at::Tensor> tensor = tensors.get(i);
        if (tensor.has_value()) {
          tensors.set(i, lend(*tensor));
        }
      }
      value = tensors;
    } else if (value.isDevice() && value.toDevice().type() == kSim) {
      device = SimGuard::whole(value.toDevice());
      value = Device(at::kCPU);
    } else if (value.isGenerator() && value.toGenerator().device().type() == kSim) {
      drawing.push_back(std::make_unique<Drawing>(value.toGenerator()));
      value = c10::IValue();  // the CPU's default one, lent for this call
    }
  }

  // A written argument, a view of an argument's memory, or something new.
  at::Tensor give(const at::Tensor& result) {
    if (!result.defined() || result.device().type() != at::kCPU) {
      return result;
    }
    for (auto& [mine, lent] : seen) {
      if (result.is_same(lent)) {
        return mine;
      }
    }
    for (auto& [mine, lent] : seen) {
      if (result.storage().is_alias_of(lent.storage())) {
        return view_of(mine, result);
      }
    }
    return to_sim(result, device);
  }

  // An `out` that the kernel made larger has new memory on the host.
  void settle() {
    for (auto& [mine, lent] : seen) {
      if (lent.sizes().equals(mine.sizes()) && lent.strides().equals(mine.strides())) {
        continue;
      }
      const bool grown = lent.storage().data() != mine.storage().data();
      if (grown) {
        mine.resize_(lent.sizes());
      }
      mine.unsafeGetTensorImpl()->set_sizes_and_strides(lent.sizes(), lent.strides());
      if (grown) {
        host(mine).copy_(lent);
      }
    }
  }
};

const std::set<std::string> kProducts = {
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::dot"};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  Call call;
  const size_t begin = stack->size() - schema.arguments().size();
  for (size_t i = begin; i < stack->size(); ++i) {
    call.lend((*stack)[i]);
  }
  const bool draws = op.hasTag(at::Tag::nondeterministic_seeded);
  if (draws && call.drawing.empty()) {
    call.drawing.push_back(std::make_unique<Drawing>(default_generator(call.device.index())));
  }
  if (kProducts.count(schema.name()) != 0) {
    take_library_memory();
  }
  if (schema.name() == "aten::addmm") {
    take_library_memory(true);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.settle();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = call.give(value.toTensor());
    } else if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      for (auto& tensor : tensors) {
        tensor = call.give(tensor);
      }
      value = c10::List<at::Tensor>(tensors);
    }
  }
}

at::Tensor empty(
    c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  const c10::impl::VirtualGuardImpl guard(kSim);
  const auto before = guard.exchangeDevice(SimGuard::whole(device.value_or(Device(kSim))));
  at::Tensor made = at::detail::empty_generic(
      sizes, &SimAllocator::instance(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype.value_or(c10::get_default_dtype_as_scalartype()), format);
  guard.setDevice(before);
  return made;
}

at::Tensor empty_with_strides(
    c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>, std::optional<Device> device, std::optional<bool>) {
  return empty_strided(
      sizes, strides, dtype.value_or(c10::get_default_dtype_as_scalartype()),
      device.value_or(Device(kSim)));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  (on_sim(to) ? host(to) : to).copy_(on_sim(from) ? host(from) : from);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

const at::Tensor& resize_(
    const at::Tensor& tensor, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat>) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(
      sizes, tensor.itemsize(), tensor.storage_offset());
  if (bytes > tensor.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(tensor.storage(), bytes);
  }
  return tensor;
}

at::Tensor& set_(
    at::Tensor& tensor, c10::Storage storage, int64_t offset, c10::IntArrayRef sizes,
    c10::IntArrayRef strides) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (strides.empty() && !sizes.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  return tensor;
}

at::Tensor& set_whole(at::Tensor& tensor, c10::Storage storage) {
  const auto items = static_cast<int64_t>(storage.nbytes() / tensor.itemsize());
  return set_(tensor, std::move(storage), 0, {items}, {1});
}

at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& source) {
  return set_(
      tensor, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

int64_t choose_attention(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
    double, bool, std::optional<double>, bool) {
  return 0;  // spelled out in products and softmax
}

at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
    bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  Call call;
  take_library_memory();
  const auto workspace = SimAllocator::instance().allocate(kWorkspace);
  const auto bias_of = bias.has_value() && bias->defined()
      ? std::optional<at::Tensor>(call.lend(*bias))
      : std::nullopt;
  return call.give(at::convolution_symint(
      call.lend(input), call.lend(weight), bias_of, stride, padding, dilation, transposed,
      output_padding, std::move(groups)));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
    bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups,
    std::array<bool, 3> wanted) {
  Call call;
  const auto workspace = SimAllocator::instance().allocate(kWorkspace);
  const auto outputs = weight.sym_size(transposed ? 1 : 0) * (transposed ? groups : 1);
  const auto bias_sizes = std::vector<c10::SymInt>{outputs};
  auto [a, b, c] = at::convolution_backward_symint(
      call.lend(gradient), call.lend(input), call.lend(weight), bias_sizes, stride, padding,
      dilation, transposed, output_padding, std::move(groups), wanted);
  return {call.give(a), call.give(b), call.give(c)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_with_strides);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_);
  m.impl("set_.source_Storage", set_whole);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("record_stream", [](at::Tensor&, Stream) {});
  m.impl("_fused_sdp_choice", choose_attention);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

// A copy reads the two lazy bits itself: what resolves them is a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(scaled_dot_product_attention, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(softmax, int, fp32)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  c10::SetAllocator(kSim, &SimAllocator::instance());
  at::RegisterPrivateUse1HooksInterface(new SimHooks());
  m.def("default_generator", &default_generator);
  m.def("set_capacity", [](size_t bytes) {
    auto& allocator = SimAllocator::instance();
    std::lock_guard<std::mutex> guard(allocator.mutex);
    allocator.capacity = bytes;
  });
  m.attr("devices") = int(kDevices);
}
