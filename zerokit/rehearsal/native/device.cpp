// The virtual device as torch's C++ sees it: guard (devices and streams), hooks, random generators.

#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <atomic>
#include <cstring>

#include "blocks.h"
#include "dispatch.h"
#include "timing.h"

namespace zerokit {
namespace {

Capability capability{9, 0};
int multiprocessors = 132;

std::atomic<int> streams_made{0};
// As c10/cuda/CUDAStream.cpp: streams come from a pool of 32, handed out in turn.
constexpr int kStreamsInPool = 32;

c10::Stream stream_number(int number, c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, device.has_index() ? device : own_device(), number);
}

// Without `override`: what torch has come to ask since 2.5, the oldest that this is for.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  // A rank uses the device of its local rank, and no other, whatever a script selects.
  c10::Device getDevice() const override { return own_device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Device exchangeDevice(c10::Device) const override { return own_device(); }
  c10::DeviceIndex deviceCount() const noexcept override { return visible_devices(); }

  c10::Stream getStream(c10::Device device) const noexcept override { return stream_number(current_stream(), device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_number(0, device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream_number(1 + streams_made++ % kStreamsInPool, device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStreamFromGlobalPool(device, false); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    const auto before = getStream(stream.device());
    set_current_stream(static_cast<int>(stream.id()));
    return before;
  }
  // An event holds its number on the clock. Without a clock everything has happened as soon as it is asked for.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new int64_t{-1};
    if (Clock* clock = the_clock()) number(*event) = clock->record(static_cast<int>(stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (is_recorded(event)) the_clock()->wait(static_cast<int>(stream.id()), number(event));
  }
  bool queryEvent(void* event) const override { return !is_recorded(event) || has_happened(number(event)); }
  bool queryStream(const c10::Stream& stream) const override {
    Clock* clock = the_clock();
    return clock == nullptr || has_happened(clock->record(static_cast<int>(stream.id())));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    if (Clock* clock = the_clock()) clock->synchronize_stream(static_cast<int>(stream.id()), waiting_now());
  }
  void synchronizeEvent(void* event) const override {
    if (is_recorded(event)) the_clock()->synchronize(number(event), waiting_now());
  }
  void synchronizeDevice(const c10::DeviceIndex) const {
    if (Clock* clock = the_clock()) clock->synchronize_all(waiting_now());
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<int64_t*>(event); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    if (!is_recorded(begin) || !is_recorded(end)) return 1.0;
    return static_cast<double>(the_clock()->time_of(number(end)) - the_clock()->time_of(number(begin))) / 1e6;
  }

 private:
  // Whoever asks again and again has time pass by it.
  static bool has_happened(int64_t event) {
    the_clock()->read();
    return the_clock()->has_happened(event);
  }
  static int64_t& number(void* event) { return *static_cast<int64_t*>(event); }
  static bool is_recorded(void* event) { return the_clock() != nullptr && event != nullptr && number(event) >= 0; }
};

// Holds a seed and an offset, as CUDA's Philox generator does; nothing is drawn from it.
class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  DeviceGenerator() : GeneratorImpl(own_device(), c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override { return seed_; }
  void set_state(const c10::TensorImpl& state) override {
    if (state.numel() < kStateBytes) return;
    const char* bytes = static_cast<const char*>(state.data());
    std::memcpy(&seed_, bytes, 8);
    std::memcpy(&offset_, bytes + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({kStateBytes}, at::kByte);
    char* bytes = static_cast<char*>(state.data_ptr());
    std::memcpy(bytes, &seed_, 8);
    std::memcpy(bytes + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }

 private:
  static constexpr int64_t kStateBytes = 16;  // as CUDAGeneratorImpl::get_state
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator;
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

class Hooks final : public at::CUDAHooksInterface {
 public:
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const {}
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  // Nothing may take the road of a real library: convolutions and RNNs go by their own shape rules.
  bool hasCuDNN() const override { return false; }
  long versionCuDNN() const override { return 0; }
  long versionRuntimeCuDNN() const { return 0; }
  bool isBuilt() const { return true; }
  bool isAvailable() const { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const {
    static auto* generator = new at::Generator(at::make_generator<DeviceGenerator>());
    return *generator;
  }
  // Before 2.6.
  const at::Generator& getDefaultCUDAGenerator(c10::DeviceIndex index) const { return getDefaultGenerator(index); }
  void initCUDA() const {}
  at::Generator getNewGenerator(c10::DeviceIndex) const { return at::make_generator<DeviceGenerator>(); }
  c10::Device getDeviceFromPtr(void*) const override { return own_device(); }
  bool isPinnedPtr(const void* address) const override { return is_pinned_address(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return device_allocator(); }
  c10::DeviceIndex current_device() const override { return own_device().index(); }
  c10::DeviceIndex getCurrentDevice() const override { return own_device().index(); }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return own_device().index(); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return own_device().index(); }
  int getNumGPUs() const override { return visible_devices(); }
  c10::DeviceIndex deviceCount() const override { return visible_devices(); }
  void deviceSynchronize(c10::DeviceIndex) const override {
    if (Clock* clock = the_clock()) clock->synchronize_all(waiting_now());
  }
};

// DistributedDataParallel times its passes by CUDA events; here there is no time to tell.
class Timer final : public c10d::Timer {
 public:
  explicit Timer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard);

using RegisterTimer = c10::Registerer<c10::DeviceType, std::unique_ptr<c10d::Timer>, c10::Device>;
RegisterTimer register_timer(c10::kCUDA, c10::REGISTRY_PREFERRED, c10d::TimerRegistry(),
                             RegisterTimer::DefaultCreator<Timer>);

// A preferred entry takes the place of a CUDA build's own hooks.
c10::Registerer<std::string, std::unique_ptr<at::CUDAHooksInterface>, at::CUDAHooksArgs> register_hooks(
    "CUDAHooks", c10::REGISTRY_PREFERRED, at::CUDAHooksRegistry(),
    c10::Registerer<std::string, std::unique_ptr<at::CUDAHooksInterface>, at::CUDAHooksArgs>::DefaultCreator<Hooks>);

}  // namespace

Capability device_capability() { return capability; }
void set_device_capability(Capability wanted) { capability = wanted; }

int device_multiprocessors() { return multiprocessors; }
void set_device_multiprocessors(int count) { multiprocessors = count; }
}  // namespace zerokit

// Before 2.7 torch makes CUDA generators without asking the hooks. Good until the thread asks for the next one.
extern "C" void* zk_new_generator() {
  static thread_local at::Generator made;
  made = at::make_generator<zerokit::DeviceGenerator>();
  return &made;
}
