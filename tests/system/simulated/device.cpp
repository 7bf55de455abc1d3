// An accelerator that does not exist: its memory is host memory that only its own allocator counts,
// its kernels are the CPU's, and backward runs in a thread of its own, as on any accelerator.
//
// What it does as a GPU does: blocks of 512 bytes, a peak that the allocator keeps, a capacity to
// run out of, memory that a library takes at its first matrix product in a thread and keeps (and
// more at the first one with a bias), workspaces inside kernels, a default generator for each
// device, streams and timed events. It heeds torch's allocator setting `expandable_segments`.

#include <ATen/autocast_mode.h>
#include <torch/csrc/utils/pybind.h>

#include "kernels.h"

namespace {

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
