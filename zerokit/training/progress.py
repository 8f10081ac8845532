"""Reports a run while it trains: a progress bar, and ``metrics.jsonl`` for programs."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from zerokit import console
from zerokit.documents import replace_nonfinite
from zerokit.errors import ZerokitError
from zerokit.staging import make_private_file, open_private_file
from zerokit.training.report import METRICS_FILE, SAMPLES_FILE
from zerokit.training.throughput import Throughput
from zerokit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from transformers import TrainerState


class RunProgress(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Writes one JSON object per log to ``metrics.jsonl``, and shows progress on stderr.

    The first line has ``max_steps``; the others have ``step``, ``elapsed_seconds`` and the Trainer's own
    names (``loss``, ``learning_rate``, ...). With a ``loss`` come ``tokens_per_second`` and ``mfu`` since the
    last log, and rank 0's ``peak_memory_bytes``. A terminal gets a bar, other outputs a line per log.
    """

    def __init__(
        self, output_dir: Path, *, throughput: Throughput | None = None, memory: PeakMemory | None = None
    ) -> None:
        self._file = output_dir / METRICS_FILE
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._start = 0.0
        self._throughput = throughput or Throughput()
        self._memory = memory
        self._is_unwritten = False
        self.first_step = 0
        """The step that the run was resumed from; 0 of a new one."""
        self.first_tokens = 0
        """Tokens that had been trained on by then."""

    def on_train_begin(self, args: Any, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        self.first_step, self.first_tokens = state.global_step, state.num_input_tokens_seen
        self._start = time.monotonic()
        self._throughput.begin(self._start, self.first_tokens)
        if not state.is_world_process_zero:
            return
        resumed = state.global_step > 0 and self._file.exists()
        for file in (self._file, self._file.with_name(SAMPLES_FILE)):
            with suppress(OSError, ZerokitError):  # the first line says so
                if resumed:
                    make_private_file(file)
                else:
                    file.unlink(missing_ok=True)
        self._write({"max_steps": state.max_steps, "step": state.global_step})
        self._bar = console.progress()
        self._bar.start()
        self._task = self._bar.add_task("training", total=state.max_steps, completed=state.global_step, note="")

    def on_step_end(self, args: Any, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        self._throughput.step_ended(time.monotonic())
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=state.global_step)

    def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self._throughput.paused(time.monotonic())

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        self._throughput.paused(time.monotonic())

    def on_log(
        self, args: Any, state: TrainerState, *_: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        more = self._measured(state.num_input_tokens_seen) if "loss" in logs else {}
        self._write({"step": state.global_step, **logs, **more})
        losses = {name: logs[name] for name in ("loss", "eval_loss") if name in logs}
        if not losses:
            return
        text = "  ".join([*(f"{name} {value:.4f}" for name, value in losses.items()), *_words(more)])
        if self._bar is not None and not self._bar.disable:
            assert self._task is not None
            self._bar.update(self._task, note=text)
        else:
            left = self._left(state) if more else ""
            console.note(f"step {state.global_step}/{state.max_steps}  {text}{left}")

    def _measured(self, tokens: int) -> dict[str, Any]:
        """Speed and memory since the last log, if tokens are counted."""
        speed = self._throughput.since_last(tokens)
        if speed is None:
            return {}
        found: dict[str, Any] = {name: value for name, value in speed._asdict().items() if value is not None}
        if self._memory is not None:
            found["peak_memory_bytes"] = self._memory.read()
        return found

    def _left(self, state: TrainerState) -> str:
        """``  4 min left``, with evaluations and checkpoints as frequent as before."""
        done, left = state.global_step - self.first_step, state.max_steps - state.global_step
        if not left or done <= 0:
            return ""
        return f"  {format_seconds((time.monotonic() - self._start) / done * left)} left"

    def stop(self) -> None:
        """Remove the bar from the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _write(self, entry: dict[str, Any]) -> None:
        entry = {**entry, "elapsed_seconds": round(time.monotonic() - self._start, 3)}
        try:
            append_line(self._file, entry)
        except (OSError, ZerokitError) as error:
            if not self._is_unwritten:
                why = getattr(error, "strerror", None) or getattr(error, "message", None) or error
                console.note(f"{self._file} cannot be written: {why}. The run goes on")
            self._is_unwritten = True


def _words(measured: dict[str, Any]) -> list[str]:
    """``8,031 tokens/s``, ``MFU 41.2%``, ``peak 12.3 GiB``."""
    formats = {"tokens_per_second": "{:,.0f} tokens/s", "mfu": "MFU {:.1%}"}
    words = [form.format(measured[name]) for name, form in formats.items() if name in measured]
    if "peak_memory_bytes" in measured:
        words.append(f"peak {format_bytes(measured['peak_memory_bytes'])}")
    return words


def append_line(path: Path, entry: dict[str, Any]) -> None:
    """Append a JSON object to a file of JSON lines. OSError or ZerokitError if it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)  # it may have been removed
    _end_line(path)
    with open_private_file(path) as file:
        file.write(json.dumps(replace_nonfinite(entry), allow_nan=False) + "\n")


def _end_line(path: Path) -> None:
    """End the last line of a file if a killed run or a full disk left it incomplete."""
    if not path.exists():
        return
    with open_private_file(path, "ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


_KIB = 1024


class PeakMemory:
    """Peak bytes since :meth:`start`, above the bytes in use then.

    On a GPU, torch's allocated bytes. On CPU, the growth of the resident set, including libraries loaded
    later.
    """

    def __init__(self, *, cuda: bool) -> None:
        self._cuda = cuda
        self._baseline = 0

    def start(self) -> None:
        """Reset the peak; the memory in use is the baseline."""
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
            self._baseline = torch.cuda.memory_allocated()
        else:
            # Writing 5 resets the kernel's high-water mark of this process (proc(5)).
            # Some sandboxes forbid it: the peak is then that of the process's whole life.
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
            self._baseline = _status_bytes("VmRSS")

    def read(self) -> int:
        """Peak bytes above the baseline."""
        if self._cuda:
            return torch.cuda.max_memory_allocated() - self._baseline
        return _status_bytes("VmHWM") - self._baseline


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * _KIB
    raise KeyError(field)
