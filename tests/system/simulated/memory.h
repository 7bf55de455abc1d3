// The simulated device's memory: an allocator that rounds, splits, reuses and counts as torch's
// caching allocator for CUDA does by default.

#pragma once

#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <unordered_map>

namespace {

using c10::Device;
using c10::DeviceIndex;

constexpr auto kSim = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kDevices = 2;
constexpr size_t kBlock = 512;              // what the allocator hands out multiples of
constexpr size_t kSmall = size_t{1} << 20;  // up to here memory comes from segments of a page
constexpr size_t kPage = size_t{1} << 21;   // what it reserves multiples of

thread_local DeviceIndex current_device = 0;

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
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
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

}  // namespace
