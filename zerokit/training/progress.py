"""What a run tells while it trains: a bar for people, ``metrics.jsonl`` for programs."""

from __future__ import annotations

import csv
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from zerokit import console
from zerokit.documents import finite
from zerokit.training.report import CSV_FILE, METRICS_FILE

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from transformers import TrainerControl, TrainerState, TrainingArguments


class RunProgress(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Writes one JSON object per log to ``metrics.jsonl``, and shows progress on stderr.

    The first line has ``max_steps``; the others have ``step``, ``elapsed_seconds`` and the Trainer's
    own names (``loss``, ``eval_loss``, ``learning_rate``, ``grad_norm``, ``epoch``). On a terminal a bar
    is drawn; elsewhere each log is one line. With `to_csv`, each figure is a line of ``metrics.csv``, too.
    """

    def __init__(self, output_dir: Path, *, to_csv: bool = False) -> None:
        self._file = output_dir / METRICS_FILE
        self._csv = output_dir / CSV_FILE if to_csv else None
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._start = 0.0
        self._is_unwritten = False
        self.first_step = 0
        """The step that the run was resumed from; 0 of a new one."""
        self.first_tokens = 0
        """Tokens that had been trained on by then."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.first_step, self.first_tokens = state.global_step, state.num_input_tokens_seen
        if not state.is_world_process_zero:
            return
        self._start = time.monotonic()
        resumed = state.global_step > 0 and self._file.exists()
        if not resumed:
            for file in (self._file, self._csv):
                if file is not None:
                    file.unlink(missing_ok=True)
        self._write({"max_steps": state.max_steps, "step": state.global_step})
        self._bar = console.progress()
        self._bar.start()
        self._task = self._bar.add_task(
            "training", total=state.max_steps, completed=state.global_step, note=""
        )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        self._write({"step": state.global_step, **logs})
        losses = {name: logs[name] for name in ("loss", "eval_loss") if name in logs}
        if not losses:
            return
        text = "  ".join(f"{name} {value:.4f}" for name, value in losses.items())
        if self._bar is not None and not self._bar.disable:
            assert self._task is not None
            self._bar.update(self._task, note=text)
        else:
            console.note(f"step {state.global_step}/{state.max_steps}  {text}")

    def stop(self) -> None:
        """Leave the terminal as it was, however the training ended."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _write(self, entry: dict[str, Any]) -> None:
        entry = {**entry, "elapsed_seconds": round(time.monotonic() - self._start, 3)}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)  # it may have been removed
            _end_line(self._file)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(finite(entry), allow_nan=False) + "\n")
            if self._csv is not None:
                self._write_csv(self._csv, entry)
        except OSError as error:
            if not self._is_unwritten:
                console.note(f"{self._file} cannot be written: {error.strerror or error}. The run goes on")
            self._is_unwritten = True

    @staticmethod
    def _write_csv(path: Path, entry: dict[str, Any]) -> None:
        """One figure a line, as not every log has the same ones."""
        place = {name: entry[name] for name in ("step", "elapsed_seconds")}
        _end_line(path)
        is_new = not path.exists()
        with path.open("a", encoding="utf-8", newline="") as file:
            lines = csv.writer(file)
            if is_new:
                lines.writerow([*place, "name", "value"])
            lines.writerows(
                [*place.values(), name, value] for name, value in entry.items() if name not in place
            )


def _end_line(path: Path) -> None:
    """End the last line of a file, if a run that was killed, or a full disk, has left it half written."""
    if not path.exists():
        return
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
