#include "run_state.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <pthread.h>
#include <torch/csrc/autograd/function.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace zerokit {
namespace {
RunState state;
thread_local int uncounted_depth = 0;
thread_local int stream_of_thread = 0;
thread_local int32_t operator_of_thread = -1;
c10::DeviceIndex own_index = 0;
c10::DeviceIndex visible_count = 1;

struct Names {
  std::mutex mutex;
  std::vector<std::string> by_index;
  std::unordered_map<std::string, int32_t> index;
};

Names& names() {
  static auto* instance = new Names;  // outlives every operator
  return *instance;
}

// A process that is forked while another thread is in here would find the lock taken for good.
[[maybe_unused]] const int handles_forks = ::pthread_atfork(
    [] { names().mutex.lock(); }, [] { names().mutex.unlock(); }, [] { names().mutex.unlock(); });
}  // namespace

RunState& run_state() { return state; }

int32_t calling_line() {
  if (state.find_site == nullptr) return -1;
  // Autograd gives a forward operation and the node of its backward pass the same number, on each thread.
  static std::map<std::pair<uint64_t, uint64_t>, int32_t> line_of_node;
  static std::mutex mutex;
  const int32_t line = state.find_site();
  std::lock_guard<std::mutex> guard(mutex);
  if (line >= 0) {
    const uint64_t next = at::sequence_number::peek();
    if (next > 0) line_of_node[{at::RecordFunction::currentThreadId(), next - 1}] = line;
    return line;
  }
  const auto node = torch::autograd::get_current_node();
  if (!node) return -1;
  // A forward operation without a large result, such as the negative log-likelihood behind a log-softmax, left no line:
  // the one just before it stands for it.
  constexpr uint64_t kNearby = 2;
  const std::pair<uint64_t, uint64_t> key{node->thread_id(), node->sequence_nr()};
  auto after = line_of_node.upper_bound(key);
  if (after == line_of_node.begin()) return -1;
  const auto& [found, nearest] = *std::prev(after);
  return found.first == key.first && key.second - found.second <= kNearby ? nearest : -1;
}

c10::Device own_device() { return {c10::kCUDA, own_index}; }
c10::DeviceIndex visible_devices() { return visible_count; }
void set_devices(c10::DeviceIndex own, c10::DeviceIndex visible) {
  own_index = own;
  visible_count = visible;
}

Uncounted::Uncounted() { ++uncounted_depth; }
Uncounted::~Uncounted() { --uncounted_depth; }
void set_counting(bool on) { uncounted_depth += on ? -1 : 1; }
bool is_counting() { return uncounted_depth == 0; }

int current_stream() { return stream_of_thread; }
void set_current_stream(int stream) { stream_of_thread = stream; }

RunningOperator::RunningOperator(int32_t index) : around_(operator_of_thread) { operator_of_thread = index; }
RunningOperator::~RunningOperator() { operator_of_thread = around_; }
int32_t running_operator() { return operator_of_thread; }

int32_t operator_index(const std::string& name) {
  auto& operators = names();
  std::lock_guard<std::mutex> guard(operators.mutex);
  const auto next = static_cast<int32_t>(operators.by_index.size());
  auto [entry, is_new] = operators.index.try_emplace(name, next);
  if (is_new) operators.by_index.push_back(name);
  return entry->second;
}
const std::vector<std::string>& operator_names() { return names().by_index; }

}  // namespace zerokit
