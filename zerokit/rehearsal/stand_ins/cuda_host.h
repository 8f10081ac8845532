// What host code of CUDA extensions uses of CUDA's and torch's headers; included before the rewritten sources.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

// ---- vector types
constexpr int warpSize = 32;

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
};
#define ZEROKIT_VECTORS(type, name)                                                                            \
  struct name##1 { type x; };                                                                                  \
  struct name##2 { type x, y; };                                                                               \
  struct name##3 { type x, y, z; };                                                                            \
  struct name##4 { type x, y, z, w; };                                                                         \
  inline name##1 make_##name##1(type x) { return {x}; }                                                        \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                             \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                                  \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
ZEROKIT_VECTORS(char, char)
ZEROKIT_VECTORS(unsigned char, uchar)
ZEROKIT_VECTORS(short, short)
ZEROKIT_VECTORS(unsigned short, ushort)
ZEROKIT_VECTORS(int, int)
ZEROKIT_VECTORS(unsigned int, uint)
ZEROKIT_VECTORS(long, long)
ZEROKIT_VECTORS(unsigned long, ulong)
ZEROKIT_VECTORS(long long, longlong)
ZEROKIT_VECTORS(unsigned long long, ulonglong)
ZEROKIT_VECTORS(float, float)
ZEROKIT_VECTORS(double, double)

// ---- numbers of 16 bits
struct __half : c10::Half { using c10::Half::Half; __half() = default; __half(const c10::Half& from) : c10::Half(from) {} };
struct __nv_bfloat16 : c10::BFloat16 {
  using c10::BFloat16::BFloat16;
  __nv_bfloat16() = default;
  __nv_bfloat16(const c10::BFloat16& from) : c10::BFloat16(from) {}
};
struct __half2 { __half x, y; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
inline __half __float2half(float value) { return value; }
inline float __half2float(__half value) { return value; }
inline __nv_bfloat16 __float2bfloat16(float value) { return value; }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }

// ---- the runtime, in which every call succeeds
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
using cudaError = cudaError_t;
using cudaStream_t = struct CUstream_st*;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout };
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };
enum cudaSharedMemConfig { cudaSharedMemBankSizeDefault, cudaSharedMemBankSizeFourByte, cudaSharedMemBankSizeEightByte };
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
struct cudaDeviceProp {
  int major = ZEROKIT_MAJOR, minor = ZEROKIT_MINOR, multiProcessorCount = ZEROKIT_MULTIPROCESSORS;
  int warpSize = 32, maxThreadsPerBlock = 1024, maxThreadsPerMultiProcessor = ZEROKIT_THREADS;
  int maxGridSize[3] = {2147483647, 65535, 65535}, maxThreadsDim[3] = {1024, 1024, 64};
  size_t totalGlobalMem = ZEROKIT_MEMORY, sharedMemPerBlock = 49152, sharedMemPerBlockOptin = ZEROKIT_SHARED_BLOCK;
  size_t sharedMemPerMultiprocessor = ZEROKIT_SHARED;
};
inline int zerokit_attribute(cudaDeviceAttr attribute) {
  const cudaDeviceProp own;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: return own.maxThreadsPerBlock;
    case cudaDevAttrMaxSharedMemoryPerBlock: return static_cast<int>(own.sharedMemPerBlock);
    case cudaDevAttrWarpSize: return own.warpSize;
    case cudaDevAttrMultiProcessorCount: return own.multiProcessorCount;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return own.maxThreadsPerMultiProcessor;
    case cudaDevAttrComputeCapabilityMajor: return own.major;
    case cudaDevAttrComputeCapabilityMinor: return own.minor;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return static_cast<int>(own.sharedMemPerMultiprocessor);
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return static_cast<int>(own.sharedMemPerBlockOptin);
  }
  return 0;
}
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
inline const char* cudaGetErrorName(cudaError_t) { return "cudaSuccess"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = ZEROKIT_DEVICE, cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) { return *properties = {}, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  return *value = zerokit_attribute(attribute), cudaSuccess;
}
template <class... T> cudaError_t cudaFuncSetAttribute(T...) { return cudaSuccess; }
template <class... T> cudaError_t cudaFuncSetCacheConfig(T...) { return cudaSuccess; }
template <class... T> cudaError_t cudaFuncSetSharedMemConfig(T...) { return cudaSuccess; }
template <class T> cudaError_t cudaGetSymbolAddress(void** place, const T& symbol) {
  return *place = const_cast<T*>(&symbol), cudaSuccess;
}
template <class T, class... R> cudaError_t cudaMemcpyToSymbol(const T&, R...) { return cudaSuccess; }
template <class T, class... R> cudaError_t cudaMemcpyToSymbolAsync(const T&, R...) { return cudaSuccess; }

// ---- launches
// Called for each kernel, with its addresses and the kind of value at each (kind_of; 'r': the kernel only reads it).
using zerokit_launch = void(const char* name, void* const* addresses, const char* kinds, int count);
extern "C" __attribute__((weak, visibility("default"))) zerokit_launch* zerokit_on_launch = nullptr;

namespace zerokit {
template <class T> constexpr char kind_of() {
  using Bare = std::remove_cv_t<T>;
  if (std::is_const_v<T>) return 'r';
  if (std::is_same_v<Bare, double>) return 'd';
  if (std::is_same_v<Bare, float>) return 'f';
  if (std::is_same_v<Bare, __half> || std::is_same_v<Bare, c10::Half>) return 'e';
  if (std::is_same_v<Bare, __nv_bfloat16> || std::is_same_v<Bare, c10::BFloat16>) return 'b';
  return 'i';
}
struct Launch {
  std::vector<void*> addresses;
  std::vector<char> kinds;
  template <class T> void add(T* pointer) {
    if constexpr (!std::is_function_v<T>) {
      addresses.push_back(const_cast<void*>(static_cast<const volatile void*>(pointer)));
      kinds.push_back(kind_of<T>());
    }
  }
  // An accessor of torch has an address; what is a number has none.
  template <class T> auto add(const T& accessor) -> decltype(add(accessor.data())) { add(accessor.data()); }
  void add(...) {}
};
template <class... T> void launched(const char* name, const T&... arguments) {
  Launch launch;
  (launch.add(arguments), ...);
  if (zerokit_on_launch == nullptr) return;
  zerokit_on_launch(name, launch.addresses.data(), launch.kinds.data(), static_cast<int>(launch.kinds.size()));
}
}  // namespace zerokit
template <class... T> cudaError_t cudaLaunchKernel(const void*, T&&...) {
  return zerokit::launched("a kernel of cudaLaunchKernel"), cudaSuccess;
}

// ---- torch's own
namespace c10::cuda {
struct CUDAStream {
  cudaStream_t stream() const { return nullptr; }
  operator cudaStream_t() const { return nullptr; }
  c10::DeviceIndex device_index() const { return ZEROKIT_DEVICE; }
  void synchronize() const {}
};
inline CUDAStream getCurrentCUDAStream(c10::DeviceIndex = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(c10::DeviceIndex = -1) { return {}; }
inline c10::DeviceIndex current_device() { return ZEROKIT_DEVICE; }
inline void device_synchronize() {}
struct OptionalCUDAGuard {
  OptionalCUDAGuard() = default;
  template <class T> explicit OptionalCUDAGuard(const T&) {}
  template <class T> void set_device(const T&) {}
  template <class T> void reset_device(const T&) {}
};
using CUDAGuard = OptionalCUDAGuard;
using CUDAStreamGuard = OptionalCUDAGuard;
}  // namespace c10::cuda
namespace at::cuda {
using namespace c10::cuda;
inline cudaDeviceProp* getCurrentDeviceProperties() { static cudaDeviceProp own; return &own; }
inline cudaDeviceProp* getDeviceProperties(c10::DeviceIndex) { return getCurrentDeviceProperties(); }
inline int warp_size() { return 32; }
template <class T> constexpr T ATenCeilDiv(T a, T b) { return (a + b - 1) / b; }
}  // namespace at::cuda
#define C10_CUDA_CHECK(call)                                \
  do {                                                      \
    TORCH_CHECK((call) == cudaSuccess, "CUDA error");       \
  } while (0)
#define C10_CUDA_CHECK_WARN(call) C10_CUDA_CHECK(call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define AT_CUDA_CHECK(call) C10_CUDA_CHECK(call)
#define C10_LAUNCH_BOUNDS_0
#define C10_LAUNCH_BOUNDS_1(...)
#define C10_LAUNCH_BOUNDS_2(...)
#define CUDA_KERNEL_LOOP(index, count) for (int64_t index = 0; index < (count); ++index)
