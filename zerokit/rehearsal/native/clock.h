// Virtual time of one rank: a host that submits work, and streams that do theirs in order.
//
// The device is simulated event by event: work begins when the stream has come to it and the host has submitted it,
// and kernels go slower while a collective runs on another stream. The device is never ahead of the host, for the host may
// still submit something that changes what comes; where the host waits, it is the device that goes on. Times are
// nanoseconds since the start, integers throughout, so that the same program always takes the same time.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

namespace zerokit {

// The numbers are part of the recording's format (recording.py).
enum class WorkKind : uint8_t {
  kernel = 0,
  copy = 1,        // between host and device
  collective = 2,
  optimizer = 3,   // of the host
  waiting = 4,     // the host, for the device
  reserving = 5,   // the host, in cudaMalloc and cudaFree
};

constexpr int kHost = -1;  // in place of a stream

// What is to be done, and what the report says of it.
struct Work {
  int64_t duration;
  int32_t name;  // a place in operator_names()
  int32_t step;  // optimizer steps completed when it was submitted
  uint8_t phase;
  WorkKind kind;
};

// What was done, and when. Layout: recording.SPAN.
struct Span {
  int64_t begin;
  int64_t end;
  int32_t name;
  int32_t step;
  int16_t stream;
  uint8_t kind;
  uint8_t phase;
};
static_assert(sizeof(Span) == 32, "recording.py reads this layout");

class Clock {
 public:
  // `beside_collective`: how many thousandths of its own time a kernel takes while a collective runs on another stream.
  explicit Clock(int64_t beside_collective = 1000) : slowed_(beside_collective) {}
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  // ---- the host
  int64_t now();
  // Somebody reads the clock or asks whether something has happened: time goes on a little, and faster for those who do
  // nothing else that takes time, so that loops that wait for a time or an event come to their end.
  int64_t read();
  void advance(int64_t duration);
  // The same without a lock, for what is often told: the host has spent it before anything else is asked for.
  void owe(int64_t duration) { owed_.fetch_add(duration, std::memory_order_relaxed); }
  // The host itself works.
  void work_on_host(const Work& work);

  // ---- the device
  void submit(int stream, const Work& work);
  // The event that has happened when all has that was submitted to the stream so far (cudaEventRecord).
  int64_t record(int stream);
  // What is submitted to the stream from here on begins after the event (cudaStreamWaitEvent).
  void wait(int stream, int64_t event);

  // ---- the host and the device
  bool has_happened(int64_t event);
  // Has the host wait.
  void synchronize(int64_t event, const Work& waiting);
  void synchronize_stream(int stream, const Work& waiting);
  void synchronize_all(const Work& waiting);
  // When the event happened; -1 if it has not yet.
  int64_t time_of(int64_t event);
  // Streams that have had work.
  std::vector<int> streams();
  // In the order in which they ended.
  std::vector<Span> spans();

 private:
  // Whoever comes here does so alone, and finds the host where it is.
  class Turn {
   public:
    explicit Turn(Clock& clock);

   private:
    std::lock_guard<std::mutex> guard_;
  };
  enum class Step : uint8_t { work, record, wait };
  struct Item {
    Step step;
    int64_t submitted;
    int64_t event;
    Work work;
  };
  struct Stream {
    int number;
    std::deque<Item> queue;  // the first is being worked on, if `running`
    bool running = false;
    int64_t began = 0;
    int64_t left = 0;  // in units of which `rate_of` are done in a nanosecond
  };

  Stream& stream(int number);
  void run(int64_t until, int64_t wanted);
  void begin_what_can();
  bool begin_next(Stream& stream);
  int64_t next_change() const;
  void progress(int64_t duration);
  int64_t rate_of(const Stream& stream) const;
  void wait_for(int64_t event, const Work& waiting);
  int64_t record_on(Stream& stream);

  std::mutex mutex_;
  int64_t slowed_;
  int64_t host_ = 0;
  std::atomic<int64_t> owed_ = 0;
  int64_t device_ = 0;  // how far the device is simulated; at most `host_`
  int64_t reads_ = 0;   // in a row
  int collectives_running_ = 0;
  std::vector<Stream> streams_;  // in the order of their first use
  std::vector<int64_t> happened_;  // by event; -1: not yet
  std::vector<Span> spans_;
};

}  // namespace zerokit
