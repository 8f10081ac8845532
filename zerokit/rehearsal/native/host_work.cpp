// What the host does between the operators: it runs Python, and autograd's nodes.
//
// Both are counted and not measured, so that the same program always takes the same time. Python lets a library run the
// frames of its functions (`python_frames.h`), and torch notifies observers of backward nodes (ATen/record_function.h).
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "python_frames.h"
#include "reuse_distance.h"
#include "timing.h"

namespace zerokit {
namespace {

// Nanoseconds of a call of a function by its code object, below 0 for one that is not counted: kImport for a module of a
// library, else of zerokit itself. `more` gets those of each frame and of each operator that it calls, and whether it runs
// a backward pass.
using CodeCost = int64_t (*)(void* code, int64_t more[3]);
constexpr int64_t kImport = -2;

struct FunctionCost {
  int64_t call_ns;
  int64_t frame_ns;
  int64_t operator_ns;
  bool is_counted;  // false for zerokit and imports; functions that these call directly are not counted either
  bool is_import;   // nothing beneath it is counted
  bool is_pass;     // runs a backward pass
  size_t number;    // for `distances`
};

PythonFrames python;
CodeCost cost_of_code = nullptr;
int64_t node_made_ns = 0;
int64_t node_run_ns = 0;
int64_t node_cold_ns = 0;
// Thousandths of a function's call by its reuse distance: none, 1, 2 to 3, 4 to 7, ..., and beyond.
std::vector<int64_t> coldness;
// Thousandths of all, by what ran from one backward pass to the next: less than `size_ns`, than twice as much, ...
std::vector<int64_t> sizes;
int64_t size_ns = 1;
std::atomic<int64_t> size_factor = 1000;
std::atomic<int64_t> worked = 0;  // since the last pass began
std::atomic<size_t> numbers = 1;  // 0: all nodes
std::thread::id script_thread;

thread_local bool is_pricing = false;
// Of the function that runs.
thread_local const FunctionCost* running = nullptr;
// The same of the script's thread, which calls what autograd's threads call.
std::atomic<const FunctionCost*> running_of_script{nullptr};
// Operators that are running, each called by the one before.
thread_local int operator_depth = 0;
thread_local uint64_t nodes_made = 0;
// Of each thread its own: threads that run at once would make them depend on chance.
thread_local ReuseDistances distances;

// Threads beside the script's and autograd's, as those that load data, take no time of the script's.
bool is_of_script() {
  return std::this_thread::get_id() == script_thread || torch::autograd::get_current_graph_task_id() != -1;
}

// In a list of factors: the first for none, then for 1, 2 to 3, 4 to 7, ..., and beyond.
size_t factor_index(const std::vector<int64_t>& factors, int64_t number) {
  const auto width = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(number)));
  return std::min(width, factors.size() - 1);
}

int64_t of_coldness(int64_t duration, size_t number) {
  return duration * coldness[factor_index(coldness, distances.use(number))] / 1000;
}

void owe(int64_t duration) {
  worked.fetch_add(duration, std::memory_order_relaxed);
  the_clock()->owe(duration * size_factor.load(std::memory_order_relaxed) / 1000);
}

// The data of a longer pass left the caches. How long it is, with its factor, decides on the factor; where two would do,
// the greater one holds, whatever the pass before had.
void begin_pass() {
  const int64_t passed = worked.exchange(0);
  size_t place = sizes.size() - 1;
  while (place > 0 && factor_index(sizes, passed * sizes[place] / 1000 / size_ns) < place) --place;
  size_factor = sizes[place];
}

// A code object remembers its cost for good.
const FunctionCost* remembered(void* code) {
  void* extra = nullptr;
  python.get_extra(code, python.index, &extra);
  if (extra == nullptr) {
    is_pricing = true;
    int64_t more[3] = {0, 0, 0};
    const int64_t call = cost_of_code(code, more);
    is_pricing = false;
    extra = new FunctionCost{
        std::max<int64_t>(call, 0), more[0], more[1], call >= 0, call == kImport, more[2] != 0, numbers++};
    python.set_extra(code, python.index, extra);
  }
  return static_cast<const FunctionCost*>(extra);
}

const FunctionCost* caller_now() {
  return running == nullptr ? running_of_script.load(std::memory_order_relaxed) : running;
}

void set_running(const FunctionCost* cost) {
  running = cost;
  if (std::this_thread::get_id() == script_thread) running_of_script.store(cost, std::memory_order_relaxed);
}

void* evaluate_counted(void* thread_state, void* frame, int throws) {
  // An exception that is thrown into a generator is on its way: nobody may call Python now.
  if (throws != 0 || is_pricing || !is_timing() || !is_of_script()) {
    return python.evaluate(thread_state, frame, throws);
  }
  void* code = python.code_of(frame);
  const FunctionCost* cost = remembered(code);
  if (python.release != nullptr) python.release(code);
  const FunctionCost* before = running;
  const FunctionCost* caller = caller_now();
  const int depth = std::exchange(operator_depth, 0);
  if (caller != nullptr && caller->is_import) {
    cost = caller;
  } else if (cost->is_counted && (caller == nullptr || caller->is_counted)) {
    if (cost->is_pass && torch::autograd::get_current_graph_task_id() == -1) begin_pass();
    owe(of_coldness(cost->call_ns, cost->number) + (caller == nullptr ? 0 : caller->frame_ns));
  }
  set_running(cost);
  void* result = python.evaluate(thread_state, frame, throws);
  set_running(before);
  operator_depth = depth;
  return result;
}

// To the function that runs a backward pass each node is one, with its hooks (torch/csrc/autograd/engine.cpp).
std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction&) {
  if (operator_depth++ == 0 && is_timing() && is_of_script()) {
    const FunctionCost* caller = caller_now();
    if (caller != nullptr && caller->operator_ns > 0) owe(caller->operator_ns);
  }
  return nullptr;
}

void end_operator(const at::RecordFunction&, at::ObserverContext*) { --operator_depth; }

std::unique_ptr<at::ObserverContext> count_run_node(const at::RecordFunction&) {
  if (is_timing()) owe(node_run_ns + of_coldness(node_cold_ns, 0));
  return nullptr;
}

}  // namespace

void count_made_nodes() {
  const uint64_t made = at::sequence_number::peek();
  if (made > nodes_made) the_clock()->owe(static_cast<int64_t>(made - nodes_made) * node_made_ns);
  nodes_made = made;
}

void pass_over_made_nodes() { nodes_made = at::sequence_number::peek(); }

bool works_for_script() { return (running == nullptr || running->is_counted) && is_of_script(); }

}  // namespace zerokit

extern "C" {

// Called with Python's lock, by the thread that runs the script. 0 if calls of Python cannot be counted.
int zk_clock_count_host_work(zerokit::CodeCost code_cost, int64_t node_made, int64_t node_run, int64_t node_cold,
                             const int64_t* cold, int64_t cold_count, const int64_t* sized, int64_t sized_count,
                             int64_t smallest) {
  using namespace zerokit;
  node_cold_ns = node_cold;
  coldness.assign(cold, cold + cold_count);
  sizes.assign(sized, sized + sized_count);
  size_ns = smallest;
  node_made_ns = node_made;
  node_run_ns = node_run;
  nodes_made = at::sequence_number::peek();
  at::addGlobalCallback(at::RecordFunctionCallback(count_run_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  at::addGlobalCallback(at::RecordFunctionCallback(begin_operator, end_operator).scopes({at::RecordScope::FUNCTION}));
  cost_of_code = code_cost;
  script_thread = std::this_thread::get_id();
  if (!python.find_interface()) return 0;
  python.replace_evaluation(evaluate_counted);
  return 1;
}
}
