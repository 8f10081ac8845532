#include "clock.h"

#include <algorithm>
#include <limits>

namespace zerokit {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kFullRate = 1000;

// What reading the clock costs, and what it costs whoever does nothing else.
constexpr int64_t kReadNs = 100;
constexpr int64_t kIdleReadNs = 100'000;
constexpr int64_t kReadsBeforeIdle = 1000;

Span span_of(const Work& work, int stream, int64_t begin, int64_t end) {
  return {begin, end, work.name, work.step, static_cast<int16_t>(stream), static_cast<uint8_t>(work.kind), work.phase};
}

}  // namespace

Clock::Turn::Turn(Clock& clock) : guard_(clock.mutex_) {
  // Calls of Python are no work that ends a loop which waits for a time: `reads_` goes on.
  clock.host_ += clock.owed_.exchange(0, std::memory_order_relaxed);
}

// ---- the host --------------------------------------------------------------------------------------------------

int64_t Clock::now() {
  const Turn turn(*this);
  return host_;
}

int64_t Clock::read() {
  const Turn turn(*this);
  host_ += ++reads_ > kReadsBeforeIdle ? kIdleReadNs : kReadNs;
  return host_;
}

void Clock::advance(int64_t duration) {
  const Turn turn(*this);
  if (duration <= 0) return;
  reads_ = 0;
  host_ += duration;
}

void Clock::work_on_host(const Work& work) {
  const Turn turn(*this);
  if (work.duration <= 0) return;
  reads_ = 0;
  spans_.push_back(span_of(work, kHost, host_, host_ + work.duration));
  host_ += work.duration;
}

// ---- the device ------------------------------------------------------------------------------------------------

void Clock::submit(int number, const Work& work) {
  const Turn turn(*this);
  if (work.duration > 0) reads_ = 0;
  stream(number).queue.push_back({Step::work, host_, -1, work});
}

int64_t Clock::record(int number) {
  const Turn turn(*this);
  return record_on(stream(number));
}

int64_t Clock::record_on(Stream& stream) {
  const auto event = static_cast<int64_t>(happened_.size());
  happened_.push_back(-1);
  stream.queue.push_back({Step::record, host_, event, {}});
  return event;
}

void Clock::wait(int number, int64_t event) {
  const Turn turn(*this);
  stream(number).queue.push_back({Step::wait, host_, event, {}});
}

// ---- the host and the device -------------------------------------------------------------------------------------

bool Clock::has_happened(int64_t event) {
  const Turn turn(*this);
  if (happened_[event] < 0) run(host_, event);
  return happened_[event] >= 0;
}

void Clock::synchronize(int64_t event, const Work& waiting) {
  const Turn turn(*this);
  wait_for(event, waiting);
}

void Clock::synchronize_stream(int number, const Work& waiting) {
  const Turn turn(*this);
  wait_for(record_on(stream(number)), waiting);
}

void Clock::synchronize_all(const Work& waiting) {
  const Turn turn(*this);
  std::vector<int64_t> last;
  for (Stream& one : streams_) last.push_back(record_on(one));
  for (const int64_t event : last) wait_for(event, waiting);
}

void Clock::wait_for(int64_t event, const Work& waiting) {
  if (happened_[event] < 0) run(kNever, event);
  const int64_t ready = happened_[event];
  if (ready <= host_) return;
  reads_ = 0;
  spans_.push_back(span_of(waiting, kHost, host_, ready));
  host_ = ready;
}

int64_t Clock::time_of(int64_t event) {
  const Turn turn(*this);
  if (happened_[event] < 0) run(host_, event);
  return happened_[event];
}

std::vector<int> Clock::streams() {
  const Turn turn(*this);
  std::vector<int> numbers;
  for (const Stream& one : streams_) numbers.push_back(one.number);
  return numbers;
}

std::vector<Span> Clock::spans() {
  const Turn turn(*this);
  return spans_;
}

// ---- the simulation ----------------------------------------------------------------------------------------------

Clock::Stream& Clock::stream(int number) {
  const auto found =
      std::find_if(streams_.begin(), streams_.end(), [number](const Stream& one) { return one.number == number; });
  if (found != streams_.end()) return *found;
  streams_.push_back({number, {}});
  return streams_.back();
}

// Has the device go on to `until`, or to the moment at which `wanted` happens if that is earlier.
void Clock::run(int64_t until, int64_t wanted) {
  while (true) {
    begin_what_can();
    if (happened_[wanted] >= 0) return;
    const int64_t next = next_change();
    if (next > until || next == kNever) break;
    progress(next - device_);
  }
  if (until != kNever) progress(until - device_);
}

// Whatever can happen at this very moment does.
void Clock::begin_what_can() {
  for (bool changed = true; changed;) {
    changed = false;
    for (Stream& one : streams_) {
      while (begin_next(one)) changed = true;
    }
  }
}

// True if the stream has come to the next item of its queue.
bool Clock::begin_next(Stream& stream) {
  if (stream.running) {
    if (stream.left > 0) return false;
    const Work& done = stream.queue.front().work;
    spans_.push_back(span_of(done, stream.number, stream.began, device_));
    collectives_running_ -= done.kind == WorkKind::collective;
    stream.running = false;
    stream.queue.pop_front();
    return true;
  }
  if (stream.queue.empty() || stream.queue.front().submitted > device_) return false;
  const Item& next = stream.queue.front();
  if (next.step == Step::work) {
    stream.running = true;
    stream.began = device_;
    stream.left = next.work.duration * slowed_;
    collectives_running_ += next.work.kind == WorkKind::collective;
    return true;
  }
  if (next.step == Step::record) {
    happened_[next.event] = device_;
  } else if (happened_[next.event] < 0) {
    return false;
  }
  stream.queue.pop_front();
  return true;
}

int64_t Clock::rate_of(const Stream& stream) const {
  const bool is_slowed = collectives_running_ > 0 && stream.queue.front().work.kind == WorkKind::kernel;
  return is_slowed ? kFullRate : slowed_;
}

// The next moment after this one at which work ends or can begin.
int64_t Clock::next_change() const {
  int64_t next = kNever;
  for (const Stream& one : streams_) {
    if (one.running) {
      const int64_t rate = rate_of(one);
      next = std::min(next, device_ + (one.left + rate - 1) / rate);
    } else if (!one.queue.empty() && one.queue.front().submitted > device_) {
      next = std::min(next, one.queue.front().submitted);
    }
  }
  return next;
}

void Clock::progress(int64_t duration) {
  if (duration <= 0) return;
  for (Stream& one : streams_) {
    if (one.running) one.left -= duration * rate_of(one);
  }
  device_ += duration;
}

}  // namespace zerokit
