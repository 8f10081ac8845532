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

namespace {

constexpr int32_t kOperator = -1, kNode = -2;

// A frame, an operator, or a node of autograd's backward pass, that is running.
struct Running {
  Running* caller;
  int32_t code;                                  // or kOperator, kNode
  int32_t frames = 0, operators = 0, nodes = 0;  // that it called itself
  int64_t begin_ns = 0, callees_ns = 0;
};

// What ended. An operator's time is all its own.
struct Sample {
  int32_t code, frames, operators, nodes;
  int64_t self_ns;
};

zerokit::PythonFrames python;
void (*add_reference)(void*) = nullptr;
bool is_on = false;
std::thread::id watched;
Running* running = nullptr;  // of the watched thread
std::vector<Sample> samples;
std::vector<void*> codes;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool is_watched() { return is_on && std::this_thread::get_id() == watched; }

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
  const int64_t spent = now_ns() - mine.begin_ns;
  running = mine.caller;
  if (running != nullptr) running->callees_ns += spent;
  samples.push_back({mine.code, mine.frames, mine.operators, mine.nodes, spent - mine.callees_ns});
}

void* evaluate_watched(void* thread_state, void* frame, int throws) {
  if (throws != 0 || !is_watched()) return python.evaluate(thread_state, frame, throws);
  Running mine{running, place_of(frame)};
  begin(mine);
  void* result = python.evaluate(thread_state, frame, throws);
  end(mine);
  if (running != nullptr) ++running->frames;
  return result;
}

struct RunningInTorch : at::ObserverContext {
  explicit RunningInTorch(int32_t code) : mine{running, code} {}
  Running mine;
};

// What runs within an operator is the operator's.
std::unique_ptr<at::ObserverContext> begin_in_torch(int32_t code) {
  if (!is_watched() || running == nullptr || running->code == kOperator) return nullptr;
  auto context = std::make_unique<RunningInTorch>(code);
  begin(context->mine);
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
  at::addGlobalCallback(at::RecordFunctionCallback(begin_operator, end_in_torch).scopes({at::RecordScope::FUNCTION}));
  samples.reserve(1 << 22);
  return python.replace_evaluation(evaluate_watched) ? 1 : 0;
}

void host_costs_turn(int on) { is_on = on != 0; }

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
