// Virtual time of one rank: a host that submits work, and the streams of its device (streams.h).
//
// The device is never ahead of the host, which may still submit something; while the host waits, the device goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "streams.h"

namespace zerokit {

// One act of the host. `Together` runs the acts of a rank again. Only ranks of one rehearsal write and read them.
struct Act {
  enum class Kind : uint8_t { submit, record, wait, synchronize, work };
  int64_t before;  // nanoseconds of the host since the last act
  int64_t event;   // For `synchronize`, `work.duration` is not a duration: it is the host's time after the wait.
  Work work;
  int32_t stream;
  Kind kind;
};
static_assert(sizeof(Act) == 48, "clock.py reads this size");

class Clock {
 public:
  // `beside_collective`: how many thousandths of its own time a kernel takes while a collective runs on another stream.
  // `can_block`: whether the driver follows CUDA_LAUNCH_BLOCKING.
  explicit Clock(int64_t beside_collective = 1000, bool can_block = false)
      : streams_(beside_collective), reads_blocking_(can_block) {}
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  // ---- the host
  int64_t now();
  // A read of the clock, or of an event: time goes on a little, and faster after many reads in a row, so that loops that
  // wait for a time or an event end.
  int64_t read();
  void advance(int64_t duration);
  // Like `advance`, but without a lock, for frequent calls: the time is added before the next other call is answered.
  void owe(int64_t duration) { owed_.fetch_add(duration, std::memory_order_relaxed); }
  // The host itself works.
  void work_on_host(const Work& work);

  // ---- the device
  void submit(int stream, const Work& work);
  // The driver is used: the first time, it reads CUDA_LAUNCH_BLOCKING.
  void use_driver();
  // Whether whoever launches a kernel, in any thread, waits for its end. The host of a rank is one.
  bool is_blocking();
  // While a CUDA graph is captured, kernels are not launched.
  void set_capturing(bool is_capturing);
  // As of `Streams`.
  int64_t record(int stream);
  void wait(int stream, int64_t event);

  // ---- the host and the device
  bool has_happened(int64_t event);
  // Has the host wait.
  void synchronize(int64_t event, const Work& waiting);
  void synchronize_stream(int stream, const Work& waiting);
  // For the device's streams alone, as cudaDeviceSynchronize does: nobody on the device knows of the drives.
  void synchronize_all(const Work& waiting);
  // When the event happened; -1 if it has not yet.
  int64_t time_of(int64_t event);
  // Streams that have had work.
  std::vector<int> streams();
  // In the order in which they ended.
  std::vector<Span> spans();

  // ---- what is done again
  // From here on, `acts` has all that the host does.
  void keep_acts();
  std::vector<Act> acts();

 private:
  // Whoever comes here does so alone, and finds the host where it is.
  class Turn {
   public:
    explicit Turn(Clock& clock);

   private:
    std::lock_guard<std::mutex> guard_;
  };

  void note(Act::Kind kind, int stream, int64_t event, const Work& work = {});
  void read_blocking();
  int64_t record_on(int stream);
  void wait_for(int64_t event, const Work& waiting);

  std::mutex mutex_;
  int64_t host_ = 0;
  std::atomic<int64_t> owed_ = 0;
  int64_t reads_ = 0;  // in a row
  Streams streams_;
  bool reads_blocking_;
  bool is_blocking_ = false;
  bool is_capturing_ = false;
  bool keeps_acts_ = false;
  int64_t noted_ = 0;  // where the host was after the last act
  std::vector<Act> acts_;
};

}  // namespace zerokit
