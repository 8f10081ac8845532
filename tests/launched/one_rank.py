"""Runs of one rank, one after the other in one process that is not the tests' own.

What ends a run, and what it leaves behind, needs neither a launcher nor a second rank; and a run in a process
that is forked from one with all imports takes a second.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import forked
from tests.processes import PATIENCE
from tests.tiny import ONE_STEP_RECIPE, tiny_llama, tiny_tokenizer

if TYPE_CHECKING:
    from zerokit.distributed.group import RankGroup

Fault = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    error: str | None
    """Exit code and line of the error that ended it; None if it ended well."""
    said: str
    """What it wrote for the person."""


@dataclass(frozen=True)
class OneRank:
    """A folder in which runs are made, by a process that waits for them."""

    folder: Path
    pool: ProcessPoolExecutor

    def train(self, *words: str, force: bool = False, fault: Fault = nullcontext) -> Outcome:
        """Run the recipe of :func:`make_folder` with `words` on top of it.

        Args:
            words: overrides, as on the command line.
            force: as ``--force``.
            fault: entered in that process around the run; a function of a test module.
        """
        return self.pool.submit(_train, self.folder, words, force, fault).result(timeout=PATIENCE)

    def error_of(self, *words: str, force: bool = False, fault: Fault = nullcontext) -> str:
        """The error that ends such a run."""
        error = self.train(*words, force=force, fault=fault).error
        assert error is not None
        return error

    def run(self, code: str) -> None:
        """Run Python code in that process, in the folder."""
        self.pool.submit(_execute, self.folder, code).result(timeout=PATIENCE)

    def json(self, name: str) -> Any:
        """A file of the folder ``out``."""
        return json.loads((self.folder / "out" / name).read_text())


@contextmanager
def one_process() -> Iterator[ProcessPoolExecutor]:
    """The process, which ends with the block."""
    with forked.one_process({**os.environ, "OMP_NUM_THREADS": "1"}) as pool:
        yield pool


def make_folder(folder: Path, **config: Any) -> None:
    """A model, of the given config, data and the recipe of one step."""
    tiny_tokenizer(folder / "model")
    tiny_llama(folder / "model", initializer_range=0.05, **config)
    lines = [json.dumps({"prompt": f"What is {i}?", "completion": f"The number {i}."}) for i in range(40)]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "recipe.yaml").write_text(ONE_STEP_RECIPE)


@cache
def _group() -> RankGroup:
    """Kept open: DeepSpeed keeps the groups that it made of it."""
    from zerokit.distributed.group import RankGroup
    from zerokit.distributed.ranks import read_ranks

    return RankGroup(read_ranks())


def _execute(folder: Path, code: str) -> None:
    os.chdir(folder)
    exec(code, {})


def _train(folder: Path, words: tuple[str, ...], force: bool, fault: Fault) -> Outcome:
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    from zerokit.errors import ZerokitError
    from zerokit.training.main import train

    os.chdir(folder)
    error = None
    with redirect_stderr(io.StringIO()) as said, fault():
        try:
            train(_group(), Path("recipe.yaml"), words, force=force)
        except ZerokitError as raised:
            error = f"{raised.exit_code} {raised}"
        finally:
            unset_hf_deepspeed_config()  # the next run's model may be in one piece
    return Outcome(error, said.getvalue())
