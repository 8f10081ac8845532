// Self times of Python's functions: of each evaluated frame its time without the frames and operators that it calls.
//
// Python lets a library run the frames of its functions (PEP 523), which leaves its bytecode specialized, unlike a
// profiler of sys.setprofile. torch notifies observers of operators and backward nodes (ATen/record_function.h).
#include <ATen/record_function.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "python_frames.h"
#include "reuse_distance.h"

namespace {

constexpr int32_t kOperator = -1, kNode = -2;

// A frame, an operator, or a node of autograd's backward pass, that is running.
struct Running {
  Running* caller;
  int32_t code;                                  // or kOperator, kNode
  int32_t distance = 0;                          // of its code's last call
  int32_t frames = 0, operators = 0, nodes = 0;  // that it called itself
  int64_t begin_ns = 0, callees_ns = 0;
  int64_t callee_ended_ns = 0;
};

// What ended. An operator's time is all its own.
struct Sample {
  int64_t code, frames, operators, nodes, distance;
  int64_t self_ns;
};

zerokit::PythonFrames python;
void (*add_reference)(void*) = nullptr;
at::CallbackHandle observer = at::INVALID_CALLBACK_HANDLE;
std::thread::id watched;
Running* running = nullptr;  // of the watched thread
std::vector<Sample> samples;
std::vector<void*> codes;
zerokit::ReuseDistances distances;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool is_watched() { return std::this_thread::get_id() == watched; }

int32_t place_of(void* frame) {
  void* code = python.code_of(frame);
  void* extra = nullptr;
  python.get_extra(code, python.index, &extra);
  if (extra == nullptr) {
    add_reference(code);
    codes.push_back(code);
    extra = reinterpret_cast<void*>(codes.size());
    python.set_extra(code, python.index, extra);
  }
  if (python.release != nullptr) python.release(code);
  return static_cast<int32_t>(reinterpret_cast<intptr_t>(extra) - 1);
}

void begin(Running& mine) {
  running = &mine;
  mine.begin_ns = now_ns();
}

void end(const Running& mine) {
  const int64_t now = now_ns();
  const int64_t spent = now - mine.begin_ns;
  running = mine.caller;
  if (running != nullptr) {
    running->callees_ns += spent;
    running->callee_ended_ns = now;
  }
  samples.push_back({mine.code, mine.frames, mine.operators, mine.nodes, mine.distance, spent - mine.callees_ns});
}

void* evaluate_watched(void* thread_state, void* frame, int throws) {
  if (throws != 0 || !is_watched()) return python.evaluate(thread_state, frame, throws);
  const int32_t code = place_of(frame);
  Running mine{running, code, distances.use(static_cast<size_t>(code - kNode))};
  begin(mine);
  void* result = python.evaluate(thread_state, frame, throws);
  end(mine);
  if (running != nullptr) ++running->frames;
  return result;
}

struct RunningInTorch : at::ObserverContext {
  RunningInTorch(int32_t code, int32_t distance) : mine{running, code, distance} {}
  Running mine;
};

// What runs within an operator is the operator's.
std::unique_ptr<at::ObserverContext> begin_in_torch(int32_t code) {
  if (!is_watched() || running == nullptr || running->code == kOperator) return nullptr;
  const int32_t distance = code == kNode ? distances.use(0) : 0;
  auto context = std::make_unique<RunningInTorch>(code, distance);
  begin(context->mine);
  // What autograd's engine does between two nodes is the second one's.
  if (code == kNode && context->mine.caller->nodes > 0) context->mine.begin_ns = context->mine.caller->callee_ended_ns;
  return context;
}

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction& function) {
  // torch/csrc/autograd/engine.cpp: a node with its hooks.
  constexpr char kOfNode[] = "autograd::engine::evaluate_function";
  return begin_in_torch(std::strncmp(function.name(), kOfNode, sizeof kOfNode - 1) == 0 ? kNode : kOperator);
}

void end_in_torch(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr) return;
  const Running& mine = static_cast<RunningInTorch*>(context)->mine;
  end(mine);
  ++(mine.code == kNode ? running->nodes : running->operators);
}

}  // namespace

extern "C" {

// With Python's lock, by the thread that is watched. 0 if this Python has another interface.
int host_costs_start() {
  if (!zerokit::PythonFrames::find(add_reference, "Py_IncRef")) return 0;
  watched = std::this_thread::get_id();
  samples.reserve(1 << 22);
  return python.find_interface() ? 1 : 0;
}

// While it is off, nothing is installed: dormant, it would make each call slower.
void host_costs_turn(int on) {
  if (on != 0) {
    at::RecordFunctionCallback callback(begin_operator, end_in_torch);
    observer = at::addGlobalCallback(callback.scopes({at::RecordScope::FUNCTION}));
    python.replace_evaluation(evaluate_watched);
  } else {
    python.replace_evaluation(python.evaluate);
    at::removeCallback(observer);
  }
}

int64_t host_costs_count() { return static_cast<int64_t>(samples.size()); }

// The samples so far, which are forgotten.
void host_costs_take(void* target) {
  std::copy(samples.begin(), samples.end(), static_cast<Sample*>(target));
  samples.clear();
}

int64_t host_costs_code_count() { return static_cast<int64_t>(codes.size()); }

// A new reference to a code object of Python's by its number in the samples.
void* host_costs_code(int64_t place) {
  void* code = codes[static_cast<size_t>(place)];
  add_reference(code);
  return code;
}
}
