"""What a script sees of virtual time; leaves it in `SEEN`, seconds."""

import asyncio
import calendar
import datetime
import io
import threading
import time
import timeit

import torch
import torch.utils.benchmark
import tqdm

SECOND = 1_980_000_000
"""Cycles of the virtual GPU."""

SEEN = {}


class Date(datetime.datetime):
    """As pandas has one."""


dates = {
    "datetime": datetime.datetime.now,
    "datetime in UTC": lambda: datetime.datetime.now(datetime.UTC),
    "utcnow": datetime.datetime.utcnow,
    "a class of dates": Date.now,
    # torch has imported tqdm before the script does, and with it `time` of the module `time`.
    "tqdm": lambda: datetime.timedelta(seconds=tqdm.std.time()),
    "timeit": lambda: datetime.timedelta(seconds=timeit.default_timer()),
}
before_of = {name: date() for name, date in dates.items()}
before = time.perf_counter(), time.monotonic_ns(), time.time()
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
torch.cuda._sleep(3 * SECOND)
end.record()
SEEN["before the host waits"] = time.perf_counter() - before[0]
torch.cuda.synchronize()
SEEN["perf_counter"] = time.perf_counter() - before[0]
SEEN["monotonic_ns"] = (time.monotonic_ns() - before[1]) / 1e9
SEEN["time"] = time.time() - before[2]
SEEN |= {name: (date() - before_of[name]).total_seconds() for name, date in dates.items()}
SEEN["the date is that of time"] = abs(datetime.datetime.now().timestamp() - time.time())
SEEN["event"] = start.elapsed_time(end) / 1000


def timed() -> None:
    torch.cuda._sleep(SECOND)
    torch.cuda.synchronize()


SEEN["timeit.timeit"] = timeit.timeit(timed, number=2)
SEEN["timeit.repeat"] = sum(timeit.repeat(timed, repeat=2, number=1))
SEEN["timeit.Timer"] = timeit.Timer(timed).timeit(2)
# A statement that calls nothing takes its time, too, or these would never end.
statement, setup = "x + y", "import torch; x, y = 1, 2; torch.cuda._sleep(10**9); torch.cuda.synchronize()"
SEEN["autorange"] = timeit.Timer(statement, setup).autorange()
SEEN["a short statement"] = timeit.timeit(statement, setup, number=1000)
ranged = torch.utils.benchmark.Timer(statement, setup).blocked_autorange(min_run_time=0.01)
SEEN["torch's autorange"] = ranged.mean
try:
    SEEN["utcnow of something"] = str(datetime.datetime.utcnow(datetime.UTC))  # type: ignore[call-arg]
except TypeError:
    SEEN["utcnow of something"] = "refused"

before_sleep = time.perf_counter()
time.sleep(0.001)
SEEN["sleep"] = time.perf_counter() - before_sleep

# Loops that wait for a time come to their end, and so do waits of Python's library, which are real.
deadline = time.monotonic() + 10
while time.monotonic() < deadline:
    pass
asyncio.run(asyncio.sleep(0.001))
torch.cuda._sleep(10_000 * SECOND)
torch.cuda.synchronize()
in_thread: list[float] = []
bar = tqdm.tqdm(total=10, file=io.StringIO())
shown: list[float] = []
drawing = threading.Thread(target=lambda: shown.extend(bar.format_dict["elapsed"] for _ in range(5000)))
before_drawing = time.perf_counter()
drawing.start()
drawing.join()
SEEN["a bar in a thread"] = shown[0]
SEEN["5,000 looks in a thread"] = time.perf_counter() - before_drawing
thread = threading.Thread(target=lambda: in_thread.append(time.perf_counter()))
thread.start()
thread.join()


def seen_by(module: str) -> float:
    """The clock, asked by a module of that name."""
    return float(eval("time.perf_counter()", {"__name__": module, "time": time}))


for module in ("zerokit.distributed.stuck", "zerokit.training.progress", "zerokit.generation.main"):
    SEEN[f"behind in {module}"] = time.perf_counter() - seen_by(module)
SEEN["behind in a thread"] = time.perf_counter() - in_thread[0]

now_by = {
    "localtime": time.mktime(time.localtime()),
    "gmtime": calendar.timegm(time.gmtime()),
    "ctime": time.mktime(time.strptime(time.ctime())),
    "asctime": time.mktime(time.strptime(time.asctime())),
    "strftime": time.mktime(time.strptime(time.strftime("%c"))),
    "today": datetime.datetime.today().timestamp(),
}
SEEN |= {f"behind by {name}": time.time() - now for name, now in now_by.items()}
at_zero = time.gmtime(0)
SEEN["dates that are given"] = [time.strftime("%Y", at_zero), time.asctime(at_zero)]


class Clocks:
    """Has what nobody calls as a method, as formatters of logging have a converter."""

    converter = time.gmtime
    counter = time.perf_counter
    wait = time.sleep


Clocks().wait(0)
SEEN["a converter"] = Clocks().converter(0).tm_year
SEEN["behind by an attribute"] = time.perf_counter() - Clocks().counter()
