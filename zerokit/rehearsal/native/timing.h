// What the rank's clock (clock.h) is told of: operators of the virtual device, and the allocator's calls of the driver.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "caching_allocator.h"
#include "clock.h"

namespace zerokit {

// Null unless the rehearsal is of time, too. Set before the first allocation, or never.
Clock* the_clock();

// `kind` in the moment that the run is in.
Work work_now(WorkKind kind, int32_t name, int64_t duration);
// The host waits, for an operator that is running or for what the script asked for.
Work waiting_now();

// The clock as a model of the allocator sees it; null without a clock. Only where `counts` does the host spend time.
DeviceClock* allocator_clock(bool counts);

// Whose time an operator takes.
enum class Worker { device, host };

// An operator while it runs on this thread: its end submits it to the current stream, or has the host spend its time.
// Operators within it take no time.
class TimedOperator {
 public:
  TimedOperator(const c10::OperatorHandle& op, const torch::jit::Stack& stack, Worker worker = Worker::device);
  ~TimedOperator();
  TimedOperator(const TimedOperator&) = delete;
  TimedOperator& operator=(const TimedOperator&) = delete;
  // `stack` has the results.
  void submit(const torch::jit::Stack& stack);

 private:
  void describe_arguments(const torch::jit::Stack& stack);
  void describe_results(const torch::jit::Stack& stack);

  const c10::OperatorHandle& op_;
  bool is_timed_;
  std::vector<int64_t> key_;
};

void set_timing(bool on);
// As set_counting (run_state.h), which timing rests on, too.
void set_timing_and_counting(bool on);
// Whether what this thread does takes time.
bool is_timing();
// Has the host spend the time of the autograd nodes that this thread made since the last call of either (host_work.cpp).
void count_made_nodes();
// They take no time.
void pass_over_made_nodes();
// Whether what this thread does on the host is the script's: of its thread or autograd's, and not called by zerokit itself.
bool works_for_script();

class TimedKernel final : public c10::OperatorKernel {
 public:
  TimedKernel(c10::KernelFunction kernel, Worker worker) : kernel_(std::move(kernel)), worker_(worker) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    TimedOperator timed(op, *stack, worker_);
    kernel_.callBoxed(op, keys, stack);
    timed.submit(*stack);
  }

 private:
  c10::KernelFunction kernel_;
  Worker worker_;
};

inline torch::CppFunction timed(c10::KernelFunction kernel, Worker worker = Worker::device) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<TimedKernel>(std::move(kernel), worker));
}

// A boxed kernel, which is timed if there is a clock.
template <auto* kernel>
torch::CppFunction boxed() {
  if (the_clock() == nullptr) return torch::CppFunction::makeFromBoxedFunction<kernel>();
  return timed(c10::KernelFunction::makeFromBoxedFunction<kernel>());
}

}  // namespace zerokit
