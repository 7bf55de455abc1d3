// The simulated device's kernels: the CPU's, on the device's memory.

#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "runtime.h"

namespace {

constexpr size_t kLibrary = size_t{1} << 16;  // what a library keeps once a thread used it
constexpr size_t kBiased = size_t{1} << 17;   // and besides, once it added a bias
constexpr size_t kWorkspace = 40000;          // what a convolution takes while it runs

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

}  // namespace
