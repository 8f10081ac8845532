// How many others were used since the last use of something: its reuse distance, by which caches forget.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zerokit {

class ReuseDistances {
 public:
  // Uses `user`, a small number, and returns how many different others were used since its last use; all at its first.
  int32_t use(size_t user) {
    if (now_ == times()) forget_times();
    if (user >= last_.size()) last_.resize(user + 1, 0);
    int32_t& last = last_[user];
    int32_t distance = distinct_;
    if (last > 0) {
      for (int32_t time = last; time > 0; time -= time & -time) distance -= counts_[time];
      add(last, -1);
    } else {
      ++distinct_;
    }
    last = ++now_;
    add(last, 1);
    return distance;
  }

 private:
  static constexpr size_t kLeastTimes = 1 << 14;

  int32_t times() const { return static_cast<int32_t>(counts_.size()) - 1; }

  void add(int32_t time, int32_t change) {
    for (; time <= times(); time += time & -time) counts_[time] += change;
  }

  // Only the order of the last uses matters. There is room for at least as many new ones.
  void forget_times() {
    std::vector<size_t> users;
    for (size_t user = 0; user < last_.size(); ++user) {
      if (last_[user] > 0) users.push_back(user);
    }
    std::sort(users.begin(), users.end(), [this](size_t one, size_t other) { return last_[one] < last_[other]; });
    counts_.assign(std::max(kLeastTimes, 2 * users.size()) + 1, 0);
    now_ = 0;
    for (const size_t user : users) add(last_[user] = ++now_, 1);
  }

  std::vector<int32_t> last_;  // the time of each user's last use, or 0
  std::vector<int32_t> counts_ = std::vector<int32_t>(kLeastTimes + 1, 0);  // of last uses by time: a Fenwick tree
  int32_t now_ = 0;
  int32_t distinct_ = 0;
};

}  // namespace zerokit
