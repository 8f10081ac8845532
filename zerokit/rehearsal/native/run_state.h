// The moment that the run is in: its step and phase, and of this thread the line, stream and operator.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace zerokit {

// The device of this rank, one of the several that it sees.
c10::Device own_device();
c10::DeviceIndex visible_devices();
void set_devices(c10::DeviceIndex own, c10::DeviceIndex visible);

struct RunState {
  uint8_t phase = 0;
  int32_t step = 0;
  int32_t (*find_site)() = nullptr;  // asks Python for the index of the calling line, -1 for none
  bool compute_everything = false;   // real values: a real run under the same accounting
};
RunState& run_state();
// The calling line: of Python if there is any on this thread, else the line whose backward pass is running.
int32_t calling_line();

// Allocations of this thread are not counted while one of these lives.
struct Uncounted {
  Uncounted();
  ~Uncounted();
};
void set_counting(bool on);
bool is_counting();

int current_stream();
void set_current_stream(int stream);

// Names the operator that runs on this thread while it lives, for the records; operators nest. `index` is a place in
// `operator_names()`.
struct RunningOperator {
  explicit RunningOperator(int32_t index);
  ~RunningOperator();

 private:
  int32_t around_;
};
int32_t running_operator();  // the innermost on this thread, or -1
int32_t operator_index(const std::string& name);
const std::vector<std::string>& operator_names();

}  // namespace zerokit
