#include "timing.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "dispatch.h"

namespace zerokit {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

std::unique_ptr<Clock> clock_of_rank;
thread_local int untimed_depth = 0;

// What cudaMalloc costs the host: of its own, and for each GiB. Not asked of Python, which may wait for this thread.
struct DriverCosts {
  int64_t reserve_ns = 0;
  int64_t reserve_gib_ns = 0;
  int64_t give_back_ns = 0;
};
DriverCosts driver_costs;

// ---- the allocator

class ClockOfAllocator final : public DeviceClock {
 public:
  explicit ClockOfAllocator(bool counts) : counts_(counts) {}
  int64_t record(int stream) override { return clock_of_rank->record(stream); }
  bool has_happened(int64_t event) override { return clock_of_rank->has_happened(event); }
  void wait_for(int64_t event) override {
    if (counts_) clock_of_rank->synchronize(event, waiting_now());
  }
  void reserve(int64_t bytes) override {
    clock_of_rank->use_driver();
    constexpr double kGib = 1 << 30;
    const auto by_size = static_cast<int64_t>(static_cast<double>(driver_costs.reserve_gib_ns) * bytes / kGib);
    if (counts_) work_on_host("cudaMalloc", driver_costs.reserve_ns + by_size);
  }
  void give_back() override {
    if (!counts_) return;
    clock_of_rank->synchronize_all(waiting_now());  // as cudaFree does
    work_on_host("cudaFree", driver_costs.give_back_ns);
  }

 private:
  static void work_on_host(const char* name, int64_t duration) {
    clock_of_rank->work_on_host(work_now(WorkKind::reserving, operator_index(name), duration));
  }
  bool counts_;
};

// ---- costs of operators

// What Python says of an operator with arguments of these sizes.
struct Cost {
  int64_t duration;  // on the stream
  int64_t launch;    // of the host
  int64_t kind;      // WorkKind
  int64_t waits;     // whether the host then waits for the stream
  int64_t host;      // of the host itself, before it launches
};
// `key`: a place in operator_names(), then what `describe` appends for each argument and result.
using Asker = void (*)(const int64_t* key, int64_t length, Cost* cost);
Asker ask_cost = nullptr;

struct KeyHash {
  size_t operator()(const std::vector<int64_t>& key) const {
    uint64_t hash = 1469598103934665603ull;
    for (const int64_t value : key) hash = (hash ^ static_cast<uint64_t>(value)) * 1099511628211ull;
    return hash ^ (hash >> 29);
  }
};

// What comes next in a key, and with what; the numbers are part of its format (timing/operators.py).
enum Entry : int64_t {
  kOther = 0,  // None among them
  kTensor = 1,  // flags, dtype, elements in memory, dimensions, sizes, strides
  kList = 2,    // flags, dtype, elements in memory, tensors
  kInteger = 3,
  kFloat = 4,     // its bits
  kIntegers = 5,  // how many, and each
};
enum Flags : int64_t { kOnDevice = 1, kRead = 2, kWritten = 4, kPinned = 8 };

// Elements without those that a stride of 0 repeats.
int64_t elements_in_memory(const Tensor& tensor) {
  int64_t elements = 1;
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
    if (tensor.size(axis) == 0) return 0;
    if (tensor.stride(axis) != 0) elements *= tensor.size(axis);
  }
  return elements;
}

int64_t place_of(const Tensor& tensor) {
  if (tensor.is_cuda()) return kOnDevice;
  const bool pinned = tensor.is_cpu() && tensor.has_storage() && is_pinned_address(tensor.storage().data());
  return pinned ? kPinned : 0;
}

void describe_tensor(std::vector<int64_t>& key, const Tensor& tensor, int64_t use) {
  const bool is_strided = tensor.layout() == c10::kStrided;
  key.insert(key.end(), {kTensor, place_of(tensor) | use, static_cast<int64_t>(tensor.scalar_type()),
                         is_strided ? elements_in_memory(tensor) : tensor.numel(), tensor.dim()});
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
  if (is_strided) {
    key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
  } else {
    key.insert(key.end(), tensor.dim(), 0);
  }
}

void describe_list(std::vector<int64_t>& key, const IValue& list, int64_t use) {
  int64_t count = 0, elements = 0, dtype = 0, place = 0;
  for_each_tensor(list, [&](const Tensor& tensor) {
    ++count;
    elements += elements_in_memory(tensor);
    dtype = static_cast<int64_t>(tensor.scalar_type());
    place |= place_of(tensor);
  });
  key.insert(key.end(), {kList, place | use, dtype, elements, count});
}

template <class Numbers>
void describe_integers(std::vector<int64_t>& key, const Numbers& numbers) {
  key.insert(key.end(), {kIntegers, static_cast<int64_t>(numbers.size())});
  for (size_t index = 0; index < numbers.size(); ++index) key.push_back(static_cast<int64_t>(numbers[index]));
}

// One entry for each argument or result, in the schema's order.
void describe(std::vector<int64_t>& key, const IValue& value, int64_t use) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      describe_tensor(key, value.toTensor(), use);
    } else {
      key.push_back(kOther);
    }
  } else if (value.isIntList()) {
    describe_integers(key, value.toIntVector());
  } else if (value.isBoolList()) {
    describe_integers(key, value.toBoolList());
  } else if (value.isList()) {
    describe_list(key, value, use);
  } else if (value.isInt()) {
    key.insert(key.end(), {kInteger, value.toInt()});
  } else if (value.isBool()) {
    key.insert(key.end(), {kInteger, value.toBool() ? 1 : 0});
  } else if (value.isDouble()) {
    int64_t bits = 0;
    const double number = value.toDouble();
    std::memcpy(&bits, &number, sizeof bits);
    key.insert(key.end(), {kFloat, bits});
  } else {
    key.push_back(kOther);
  }
}

// CardCosts by key, as far as Python has been asked.
struct Known {
  std::mutex mutex;
  std::unordered_map<std::vector<int64_t>, Cost, KeyHash> costs;
};
Known& known() {
  static auto* instance = new Known;
  return *instance;
}

bool find_cost(const std::vector<int64_t>& key, Cost* cost) {
  std::lock_guard<std::mutex> guard(known().mutex);
  const auto found = known().costs.find(key);
  if (found == known().costs.end()) return false;
  *cost = found->second;
  return true;
}

}  // namespace

Clock* the_clock() { return clock_of_rank.get(); }

Work work_now(WorkKind kind, int32_t name, int64_t duration) {
  return {duration, name, run_state().step, run_state().phase, kind};
}

Work waiting_now() { return work_now(WorkKind::waiting, running_operator(), 0); }

DeviceClock* allocator_clock(bool counts) {
  if (!clock_of_rank) return nullptr;
  static ClockOfAllocator with_costs(true), without(false);
  return counts ? &with_costs : &without;
}

bool is_timing() { return untimed_depth == 0 && clock_of_rank && is_counting(); }

// The nodes of autograd are counted at the end of operators: those that were made before the switch are counted now, and
// those that were made without timing never.
template <class Switch>
static void switch_timing(Switch change) {
  const bool was_timing = is_timing();
  if (was_timing) count_made_nodes();
  change();
  if (!was_timing && is_timing()) pass_over_made_nodes();
}

void set_timing(bool on) {
  switch_timing([on] { untimed_depth += on ? -1 : 1; });
}

void set_timing_and_counting(bool on) {
  switch_timing([on] { set_counting(on); });
}

// ---- operators

TimedOperator::TimedOperator(const c10::OperatorHandle& op, const Stack& stack, Worker worker)
    : op_(op), is_timed_(is_timing() && ask_cost != nullptr && (worker == Worker::device || works_for_script())) {
  ++untimed_depth;
  if (is_timed_) describe_arguments(stack);
}

TimedOperator::~TimedOperator() { --untimed_depth; }

void TimedOperator::describe_arguments(const Stack& stack) {
  const auto& schema = op_.schema();
  const auto& overload = schema.overload_name();
  key_.reserve(64);
  key_.push_back(operator_index(overload.empty() ? schema.name() : schema.name() + "." + overload));
  const auto& arguments = schema.arguments();
  for (size_t index = 0; index < arguments.size(); ++index) {
    const auto* alias = arguments[index].alias_info();
    const bool is_written = alias != nullptr && alias->isWrite();
    const int64_t use = is_written ? (arguments[index].is_out() ? kWritten : kRead | kWritten) : kRead;
    const bool comes_back = arguments[index].is_out() && !op_.schema().returns().empty();
    // It may be empty yet: the kernel writes what it is as a result.
    describe(key_, torch::jit::peek(stack, index, arguments.size()), comes_back ? 0 : use);
  }
}

void TimedOperator::describe_results(const Stack& stack) {
  const auto& results = op_.schema().returns();
  const auto& arguments = op_.schema().arguments();
  const bool writes_out = std::any_of(arguments.begin(), arguments.end(), [](const auto& one) { return one.is_out(); });
  for (size_t index = 0; index < results.size(); ++index) {
    // What else aliases an argument is that argument, or a view of it, which nobody writes.
    if (results[index].alias_info() != nullptr && !writes_out) continue;
    describe(key_, torch::jit::peek(stack, index, results.size()), kWritten);
  }
}

void TimedOperator::submit(const Stack& stack) {
  if (!is_timed_) return;
  count_made_nodes();
  const auto name = static_cast<int32_t>(key_[0]);
  Cost cost{};
  if (!find_cost(key_, &cost)) {
    std::vector<int64_t> asked = key_;
    describe_results(stack);
    ask_cost(key_.data(), static_cast<int64_t>(key_.size()), &cost);
    std::lock_guard<std::mutex> guard(known().mutex);
    known().costs.emplace(std::move(asked), cost);
  }
  const auto kind = static_cast<WorkKind>(cost.kind);
  if (cost.host > 0) clock_of_rank->work_on_host(work_now(kind, name, cost.host));
  if (cost.launch > 0) clock_of_rank->advance(cost.launch);
  if (cost.duration > 0) {
    clock_of_rank->submit(current_stream(), work_now(kind, name, cost.duration));
  }
  if (cost.waits != 0) clock_of_rank->synchronize_stream(current_stream(), work_now(WorkKind::waiting, name, 0));
}

}  // namespace zerokit

// ---- what Python sees of the clock, through ctypes (clock.py)

using namespace zerokit;

extern "C" {

// Before the first allocation, and before the device is taken over.
void zk_clock_start(int64_t beside_collective, int can_block) {
  clock_of_rank = std::make_unique<Clock>(beside_collective, can_block != 0);
}
void zk_clock_ask(Asker asker) { ask_cost = asker; }
void zk_clock_ask_again() {
  std::lock_guard<std::mutex> guard(known().mutex);
  known().costs.clear();
}
void zk_clock_driver_costs(int64_t reserve, int64_t reserve_gib, int64_t give_back) {
  driver_costs = {reserve, reserve_gib, give_back};
}
void zk_clock_set_timing(int on) { set_timing(on != 0); }
int zk_clock_is_blocking() { return clock_of_rank->is_blocking() ? 1 : 0; }
void zk_clock_set_capturing(int is_capturing) { clock_of_rank->set_capturing(is_capturing != 0); }
int64_t zk_clock_now() { return clock_of_rank->now(); }
int64_t zk_clock_read() { return clock_of_rank->read(); }
void zk_clock_advance(int64_t duration) { clock_of_rank->advance(duration); }
void zk_clock_work_on_host(int kind, const char* name, int64_t duration) {
  clock_of_rank->work_on_host(work_now(static_cast<WorkKind>(kind), operator_index(name), duration));
}
// `meeting`: of this rank with others, or -1 (streams.h).
void zk_clock_submit(int stream, int kind, const char* name, int64_t duration, int meeting) {
  Work work = work_now(static_cast<WorkKind>(kind), operator_index(name), duration);
  work.meeting = meeting;
  clock_of_rank->submit(stream, work);
}
int64_t zk_clock_record(int stream) { return clock_of_rank->record(stream); }
void zk_clock_wait(int stream, int64_t event) { clock_of_rank->wait(stream, event); }
int zk_clock_has_happened(int64_t event) { return clock_of_rank->has_happened(event); }
int64_t zk_clock_time_of(int64_t event) { return clock_of_rank->time_of(event); }
void zk_clock_synchronize(int64_t event) { clock_of_rank->synchronize(event, waiting_now()); }
void zk_clock_synchronize_stream(int stream) { clock_of_rank->synchronize_stream(stream, waiting_now()); }
void zk_clock_synchronize_all() { clock_of_rank->synchronize_all(waiting_now()); }
int64_t zk_clock_streams(int64_t* numbers, int64_t room) {
  const auto found = clock_of_rank->streams();
  std::copy_n(found.begin(), std::min<int64_t>(room, static_cast<int64_t>(found.size())), numbers);
  return static_cast<int64_t>(found.size());
}
void zk_clock_keep_acts() { clock_of_rank->keep_acts(); }
int64_t zk_clock_act_count() { return static_cast<int64_t>(clock_of_rank->acts().size()); }
void zk_clock_copy_acts(void* target, int64_t count) {
  const auto acts = clock_of_rank->acts();
  std::copy_n(acts.begin(), std::min<int64_t>(count, static_cast<int64_t>(acts.size())), static_cast<Act*>(target));
}
int64_t zk_clock_span_count() { return static_cast<int64_t>(clock_of_rank->spans().size()); }
void zk_clock_copy_spans(void* target, int64_t count) {
  const auto spans = clock_of_rank->spans();
  std::copy_n(spans.begin(), std::min<int64_t>(count, static_cast<int64_t>(spans.size())), static_cast<Span*>(target));
}
}
