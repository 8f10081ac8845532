#include "streams.h"

#include <algorithm>

namespace zerokit {
namespace {

constexpr int64_t kFullRate = 1000;

}  // namespace

Span span_of(const Work& work, int stream, int64_t begin, int64_t end) {
  return {begin, end, work.name, work.step, static_cast<int16_t>(stream), static_cast<uint8_t>(work.kind), work.phase};
}

// ---- meetings

void Meetings::come(int32_t meeting) {
  begun_.push_back(meeting);
  --missing_[meeting];
}

bool Meetings::give_up_one() {
  while (!begun_.empty()) {
    const int32_t meeting = begun_.front();
    begun_.pop_front();
    if (is_complete(meeting)) continue;
    missing_[meeting] = 0;
    ++given_up_;
    return true;
  }
  return false;
}

// ---- what streams are given

void Streams::submit(int number, int64_t time, const Work& work) {
  stream(number).queue.push_back({Step::work, time, -1, work});
}

int64_t Streams::record(int number, int64_t time) {
  const auto event = static_cast<int64_t>(happened_.size());
  happened_.push_back(-1);
  stream(number).queue.push_back({Step::record, time, event, {}});
  return event;
}

void Streams::wait(int number, int64_t time, int64_t event) {
  stream(number).queue.push_back({Step::wait, time, event, {}});
}

std::vector<int> Streams::numbers() const {
  std::vector<int> numbers;
  for (const Stream& one : streams_) numbers.push_back(one.number);
  return numbers;
}

Streams::Stream& Streams::stream(int number) {
  const auto found =
      std::find_if(streams_.begin(), streams_.end(), [number](const Stream& one) { return one.number == number; });
  if (found != streams_.end()) return *found;
  streams_.push_back({number, {}});
  return streams_.back();
}

// ---- how time goes on

void Streams::run(int64_t until, int64_t wanted) {
  while (true) {
    begin_what_can();
    if (happened_[wanted] >= 0) return;
    const int64_t next = next_change();
    if (next > until || next == kNever) break;
    progress(next - now_);
  }
  if (until != kNever) progress(until - now_);
}

bool Streams::begin_what_can() {
  bool any = false;
  for (bool changed = true; changed;) {
    changed = false;
    for (Stream& one : streams_) {
      while (begin_next(one)) changed = any = true;
    }
  }
  return any;
}

// True if the stream has come to the next item of its queue.
bool Streams::begin_next(Stream& stream) {
  if (stream.running) {
    if (stream.left > 0) return false;
    const Work& done = stream.queue.front().work;
    spans.push_back(span_of(done, stream.number, stream.began, now_));
    collectives_running_ -= done.kind == WorkKind::collective;
    stream.running = false;
    stream.queue.pop_front();
    return true;
  }
  if (stream.queue.empty() || stream.queue.front().submitted > now_) return false;
  const Item& next = stream.queue.front();
  if (next.step == Step::work) return begin_work(stream);
  if (next.step == Step::record) {
    happened_[next.event] = now_;
  } else if (happened_[next.event] < 0) {
    return false;
  }
  stream.queue.pop_front();
  return true;
}

bool Streams::begin_work(Stream& stream) {
  const Work& next = stream.queue.front().work;
  if (meetings_ != nullptr && next.meeting >= 0) {
    if (stream.came < 0) {
      stream.came = now_;
      meetings_->come(next.meeting);
    }
    if (!meetings_->is_complete(next.meeting)) return false;
    if (now_ > stream.came) {
      Work waited = next;
      waited.kind = WorkKind::meeting;
      spans.push_back(span_of(waited, stream.number, stream.came, now_));
    }
    stream.came = -1;
  }
  stream.running = true;
  stream.began = now_;
  stream.left = next.duration * slowed_;
  collectives_running_ += next.kind == WorkKind::collective;
  return true;
}

int64_t Streams::rate_of(const Stream& stream) const {
  const bool is_slowed = collectives_running_ > 0 && stream.queue.front().work.kind == WorkKind::kernel;
  return is_slowed ? kFullRate : slowed_;
}

int64_t Streams::next_change() const {
  int64_t next = kNever;
  for (const Stream& one : streams_) {
    if (one.running) {
      const int64_t rate = rate_of(one);
      next = std::min(next, now_ + (one.left + rate - 1) / rate);
    } else if (!one.queue.empty() && one.queue.front().submitted > now_) {
      next = std::min(next, one.queue.front().submitted);
    }
  }
  return next;
}

void Streams::progress(int64_t duration) {
  if (duration <= 0) return;
  for (Stream& one : streams_) {
    if (one.running) one.left -= duration * rate_of(one);
  }
  now_ += duration;
}

}  // namespace zerokit
