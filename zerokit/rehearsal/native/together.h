// Simulates several ranks in one virtual time. Each rank was rehearsed alone first, and recorded its acts. Here the acts of
// all ranks run again: a collective begins when the last of its ranks has reached it. The CPU of a rank spends as much time
// between two waits as it did alone, so it is late by as much as the last wait took longer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "clock.h"

namespace zerokit {

class Together {
 public:
  // `ranks_of_meetings`: as of `Meetings`.
  Together(int64_t beside_collective, std::vector<int32_t> ranks_of_meetings)
      : slowed_(beside_collective), meetings_(std::move(ranks_of_meetings)) {}
  // `acts`: of the next rank, whose works name meetings of this.
  void add(std::vector<Act> acts);
  void play();

  const std::vector<Span>& spans(int rank) const { return ranks_[rank]->streams.spans; }
  const std::vector<int64_t>& events(int rank) const { return ranks_[rank]->streams.happened(); }
  // Pairs of times, one pair for each wait of a rank's host: its end when the rank was alone, and its end now.
  const std::vector<int64_t>& hosts(int rank) const { return ranks_[rank]->hosts; }
  // Collectives that began without all of their ranks, because otherwise no rank could go on.
  int64_t given_up() const { return meetings_.given_up(); }

 private:
  struct Rank {
    Rank(std::vector<Act> all, int64_t slowed, Meetings* meetings) : acts(std::move(all)), streams(slowed, meetings) {}
    std::vector<Act> acts;
    size_t next = 0;
    bool is_waiting = false;
    int64_t host = 0;
    Streams streams;
    std::vector<int64_t> hosts;
  };

  static bool go_on(Rank& rank);
  static bool wait(Rank& rank, const Act& act);

  int64_t slowed_;
  Meetings meetings_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace zerokit
