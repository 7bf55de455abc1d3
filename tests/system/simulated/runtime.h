// The simulated device's streams, timed events and random generators.

#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>

#include "memory.h"

namespace {

using c10::Stream;
using c10::StreamId;

thread_local std::array<StreamId, kDevices> current_stream{};

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

}  // namespace
