#include "clock.h"

#include <algorithm>
#include <cstdlib>

namespace zerokit {
namespace {

// What reading the clock costs, and what it costs whoever does nothing else.
constexpr int64_t kReadNs = 100;
constexpr int64_t kIdleReadNs = 100'000;
constexpr int64_t kReadsBeforeIdle = 1000;

bool is_drive(int stream) { return stream >= kFirstDrive && stream < kFirstCommunicator; }

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
  note(Act::Kind::work, kHost, -1, work);
  streams_.spans.push_back(span_of(work, kHost, host_, host_ + work.duration));
  noted_ = host_ += work.duration;
}

// ---- the device ------------------------------------------------------------------------------------------------

void Clock::submit(int stream, const Work& work) {
  const Turn turn(*this);
  if (work.duration > 0) reads_ = 0;
  note(Act::Kind::submit, stream, -1, work);
  streams_.submit(stream, host_, work);
  read_blocking();
  if (!is_blocking_ || is_capturing_ || work.kind != WorkKind::kernel) return;
  Work waiting = work;
  waiting.kind = WorkKind::waiting;
  waiting.duration = 0;
  waiting.meeting = -1;
  wait_for(record_on(stream), waiting);
}

void Clock::use_driver() {
  const Turn turn(*this);
  read_blocking();
}

void Clock::read_blocking() {
  if (!reads_blocking_) return;
  reads_blocking_ = false;
  const char* value = std::getenv("CUDA_LAUNCH_BLOCKING");
  is_blocking_ = value != nullptr && std::atoi(value) != 0;
}

bool Clock::is_blocking() {
  const Turn turn(*this);
  return is_blocking_ && !is_capturing_;
}

void Clock::set_capturing(bool is_capturing) {
  const Turn turn(*this);
  is_capturing_ = is_capturing;
}

int64_t Clock::record(int stream) {
  const Turn turn(*this);
  return record_on(stream);
}

int64_t Clock::record_on(int stream) {
  note(Act::Kind::record, stream, -1);
  return streams_.record(stream, host_);
}

void Clock::wait(int stream, int64_t event) {
  const Turn turn(*this);
  note(Act::Kind::wait, stream, event);
  streams_.wait(stream, host_, event);
}

// ---- the host and the device -------------------------------------------------------------------------------------

bool Clock::has_happened(int64_t event) {
  const Turn turn(*this);
  if (!streams_.has_happened(event)) streams_.run(host_, event);
  return streams_.has_happened(event);
}

void Clock::synchronize(int64_t event, const Work& waiting) {
  const Turn turn(*this);
  wait_for(event, waiting);
}

void Clock::synchronize_stream(int stream, const Work& waiting) {
  const Turn turn(*this);
  wait_for(record_on(stream), waiting);
}

void Clock::synchronize_all(const Work& waiting) {
  const Turn turn(*this);
  std::vector<int64_t> last;
  for (const int stream : streams_.numbers()) {
    if (!is_drive(stream)) last.push_back(record_on(stream));
  }
  for (const int64_t event : last) wait_for(event, waiting);
}

void Clock::wait_for(int64_t event, const Work& waiting) {
  if (!streams_.has_happened(event)) streams_.run(kNever, event);
  const int64_t ready = streams_.time_of(event);
  Work waited = waiting;
  waited.duration = std::max(ready, host_);
  note(Act::Kind::synchronize, kHost, event, waited);
  if (ready <= host_) return;
  reads_ = 0;
  streams_.spans.push_back(span_of(waiting, kHost, host_, ready));
  noted_ = host_ = ready;
}

int64_t Clock::time_of(int64_t event) {
  const Turn turn(*this);
  if (!streams_.has_happened(event)) streams_.run(host_, event);
  return streams_.time_of(event);
}

std::vector<int> Clock::streams() {
  const Turn turn(*this);
  return streams_.numbers();
}

std::vector<Span> Clock::spans() {
  const Turn turn(*this);
  return streams_.spans;
}

// ---- what is done again ------------------------------------------------------------------------------------------

void Clock::keep_acts() {
  const Turn turn(*this);
  keeps_acts_ = true;
}

std::vector<Act> Clock::acts() {
  const Turn turn(*this);
  return acts_;
}

void Clock::note(Act::Kind kind, int stream, int64_t event, const Work& work) {
  if (!keeps_acts_) return;
  acts_.push_back({host_ - noted_, event, work, stream, kind});
  noted_ = host_;
}

}  // namespace zerokit
