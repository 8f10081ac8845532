#include "together.h"

#include <algorithm>

namespace zerokit {

void Together::add(std::vector<Act> acts) {
  ranks_.push_back(std::make_unique<Rank>(std::move(acts), slowed_, &meetings_));
}

void Together::play() {
  int64_t now = 0;
  while (true) {
    for (bool changed = true; changed;) {
      changed = false;
      for (const auto& rank : ranks_) {
        if (go_on(*rank)) changed = true;
        if (rank->streams.begin_what_can()) changed = true;
      }
    }
    int64_t next = kNever;
    for (const auto& rank : ranks_) next = std::min(next, rank->streams.next_change());
    if (next == kNever) {
      if (!meetings_.give_up_one()) break;
      continue;
    }
    for (const auto& rank : ranks_) rank->streams.progress(next - now);
    now = next;
  }
  for (const auto& rank : ranks_) {
    auto& spans = rank->streams.spans;
    std::stable_sort(spans.begin(), spans.end(), [](const Span& one, const Span& other) { return one.end < other.end; });
  }
}

// Has the host do what it can, up to where it waits; false if that is nothing.
bool Together::go_on(Rank& rank) {
  const size_t before = rank.next;
  for (; rank.next < rank.acts.size(); ++rank.next) {
    const Act& act = rank.acts[rank.next];
    if (!rank.is_waiting) rank.host += act.before;
    rank.is_waiting = false;
    switch (act.kind) {
      case Act::Kind::submit:
        rank.streams.submit(act.stream, rank.host, act.work);
        break;
      case Act::Kind::record:
        rank.streams.record(act.stream, rank.host);
        break;
      case Act::Kind::wait:
        rank.streams.wait(act.stream, rank.host, act.event);
        break;
      case Act::Kind::work:
        rank.streams.spans.push_back(span_of(act.work, kHost, rank.host, rank.host + act.work.duration));
        rank.host += act.work.duration;
        break;
      case Act::Kind::synchronize:
        rank.is_waiting = !wait(rank, act);
        if (rank.is_waiting) return rank.next > before;
    }
  }
  return rank.next > before;
}

// False while the event has not happened.
bool Together::wait(Rank& rank, const Act& act) {
  if (!rank.streams.has_happened(act.event)) return false;
  const int64_t ready = rank.streams.time_of(act.event);
  if (ready > rank.host) rank.streams.spans.push_back(span_of(act.work, kHost, rank.host, ready));
  rank.host = std::max(rank.host, ready);
  rank.hosts.push_back(act.work.duration);
  rank.hosts.push_back(rank.host);
  return true;
}

}  // namespace zerokit

// ---- what Python sees of it, through ctypes (together.py)

using zerokit::Act;
using zerokit::Span;
using zerokit::Together;

extern "C" {

void* zk_together_new(int64_t beside_collective, const int32_t* ranks_of_meetings, int64_t meetings) {
  return new Together(beside_collective, {ranks_of_meetings, ranks_of_meetings + meetings});
}
// `meetings`: those of this for the rank's own; -1 for one that nobody else comes to.
void zk_together_add(Together* together, const Act* acts, int64_t count, const int32_t* meetings) {
  std::vector<Act> own(acts, acts + count);
  for (Act& act : own) {
    if (act.work.meeting >= 0) act.work.meeting = meetings[act.work.meeting];
  }
  together->add(std::move(own));
}
void zk_together_play(Together* together) { together->play(); }
int64_t zk_together_given_up(const Together* together) { return together->given_up(); }
#define ZEROKIT_LIST(name, Element)                                                          \
  int64_t zk_together_##name##_count(const Together* together, int rank) {                   \
    return static_cast<int64_t>(together->name##s(rank).size());                             \
  }                                                                                          \
  void zk_together_copy_##name##s(const Together* together, int rank, Element* target) {     \
    std::copy(together->name##s(rank).begin(), together->name##s(rank).end(), target);       \
  }
ZEROKIT_LIST(span, Span)
ZEROKIT_LIST(event, int64_t)
ZEROKIT_LIST(host, int64_t)
void zk_together_delete(Together* together) { delete together; }
}
