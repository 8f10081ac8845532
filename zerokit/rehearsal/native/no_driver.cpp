// A CUDA driver without devices. It is built as libcuda.so.1 and loaded before torch, so that whoever opens the driver
// later gets this one, and no code path of a rehearsal can reach a GPU that the machine happens to have.
//
// A rehearsal answers every question above the driver; on torch 2.13's CUDA build it makes no call here at all.

#include <cstdint>
#include <cstring>

namespace {
constexpr int kSuccess = 0;
constexpr int kNoDevice = 100;
constexpr int kNotFound = 500;
constexpr int kVersion = 13000;  // any that cudart accepts
}  // namespace

extern "C" {

int cuInit(unsigned) { return kNoDevice; }
int cuDriverGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}
int cuDeviceGetCount(int* count) {
  *count = 0;
  return kNoDevice;
}
int cuGetErrorName(int, const char** text) {
  *text = "CUDA_ERROR_NO_DEVICE";
  return kSuccess;
}
int cuGetErrorString(int, const char** text) {
  *text = "no CUDA device during a rehearsal";
  return kSuccess;
}
int cuGetProcAddress_v2(const char* symbol, void** function, int, uint64_t, int* status);
int cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

// cudart asks for everything by name.
int cuGetProcAddress_v2(const char* symbol, void** function, int, uint64_t, int* status) {
  const struct {
    const char* name;
    void* address;
  } known[] = {
      {"cuInit", reinterpret_cast<void*>(&cuInit)},
      {"cuDriverGetVersion", reinterpret_cast<void*>(&cuDriverGetVersion)},
      {"cuDeviceGetCount", reinterpret_cast<void*>(&cuDeviceGetCount)},
      {"cuGetErrorName", reinterpret_cast<void*>(&cuGetErrorName)},
      {"cuGetErrorString", reinterpret_cast<void*>(&cuGetErrorString)},
      {"cuGetProcAddress", reinterpret_cast<void*>(&cuGetProcAddress_v2)},
  };
  for (const auto& entry : known) {
    if (std::strcmp(symbol, entry.name) == 0) {
      *function = entry.address;
      if (status != nullptr) *status = 0;
      return kSuccess;
    }
  }
  *function = nullptr;
  if (status != nullptr) *status = 1;
  return kNotFound;
}
}
