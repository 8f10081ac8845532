// The streams of a rank's device in virtual time: each does what it is given in order, and waits for events.
//
// Work begins when its stream has come to it and the host has submitted it, and kernels go slower while a collective
// runs on another stream. Times are nanoseconds since the start, integers throughout, so that the same program always
// takes the same time, in however many pieces it is played.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

namespace zerokit {

// The numbers are part of the recording's format (recording.py).
enum class WorkKind : uint8_t {
  kernel = 0,
  copy = 1,        // between host and device, or to and from a drive
  collective = 2,
  optimizer = 3,   // of the host
  waiting = 4,     // the host, for the device
  reserving = 5,   // the host, in cudaMalloc and cudaFree
  meeting = 6,     // a collective, for ranks that have not come to it yet
  host_operator = 8,  // of the host, on its own tensors
};

constexpr int kHost = -1;  // in place of a stream
// From here up to the communicators, drives have their numbers (clock.py): they are in order, too, but not the device's.
constexpr int kFirstDrive = 900;
constexpr int kFirstCommunicator = 1000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// What is to be done, and what the report says of it.
struct Work {
  int64_t duration;
  int32_t name;  // a place in operator_names()
  int32_t step;  // optimizer steps completed when it was submitted
  uint8_t phase;
  WorkKind kind;
  int32_t meeting = -1;  // with which ranks it is done: a place in `Meetings`, or -1
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

Span span_of(const Work& work, int stream, int64_t begin, int64_t end);

// Collectives of several ranks that are played together: they begin when the last of their ranks has come to them.
class Meetings {
 public:
  // `ranks`: of each meeting, how many come to it.
  explicit Meetings(std::vector<int32_t> ranks) : missing_(std::move(ranks)) {}
  void come(int32_t meeting);
  bool is_complete(int32_t meeting) const { return missing_[meeting] <= 0; }
  // Lets those that wait go on without the others, the first that somebody has come to; false if nobody waits.
  bool give_up_one();
  // Meetings that were given up.
  int64_t given_up() const { return given_up_; }

 private:
  std::vector<int32_t> missing_;
  std::deque<int32_t> begun_;  // in the order in which the first came
  int64_t given_up_ = 0;
};

class Streams {
 public:
  // `slowed`: how many thousandths of its own time a kernel takes while a collective runs on another stream.
  // `meetings`: where other ranks are waited for; null if nobody is.
  explicit Streams(int64_t slowed, Meetings* meetings = nullptr) : slowed_(slowed), meetings_(meetings) {}
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // ---- what streams are given, by a host that is at `time`
  void submit(int stream, int64_t time, const Work& work);
  // The event that has happened when all has that was given to the stream so far (cudaEventRecord).
  int64_t record(int stream, int64_t time);
  // What is given to the stream from here on begins after the event (cudaStreamWaitEvent).
  void wait(int stream, int64_t time, int64_t event);

  // ---- what came of it
  bool has_happened(int64_t event) const { return happened_[event] >= 0; }
  // -1: not yet.
  int64_t time_of(int64_t event) const { return happened_[event]; }
  // Streams that have been given something, in the order of their first use.
  std::vector<int> numbers() const;
  // What was done, and what the host adds, in the order in which it ended.
  std::vector<Span> spans;
  // By event.
  const std::vector<int64_t>& happened() const { return happened_; }

  // ---- how time goes on
  // Goes on to `until`, or to the moment at which `wanted` happens if that is earlier.
  void run(int64_t until, int64_t wanted);
  // Whatever can happen at this very moment does; false if nothing could.
  bool begin_what_can();
  // The next moment after this one at which work ends or can begin; kNever without any.
  int64_t next_change() const;
  void progress(int64_t duration);

 private:
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
    int64_t came = -1;  // when the stream came to the collective that is first, if it waits for other ranks
    int64_t began = 0;
    int64_t left = 0;  // in units of which `rate_of` are done in a nanosecond
  };

  Stream& stream(int number);
  bool begin_next(Stream& stream);
  bool begin_work(Stream& stream);
  int64_t rate_of(const Stream& stream) const;

  int64_t slowed_;
  Meetings* meetings_;
  int64_t now_ = 0;
  int collectives_running_ = 0;
  std::vector<Stream> streams_;    // in the order of their first use
  std::vector<int64_t> happened_;  // by event; -1: not yet
};

}  // namespace zerokit
