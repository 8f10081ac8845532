"""Results: one JSON line per prompt, in the order of the input, never a half-written file.

While a run goes on, its results are kept in ``OUT.jsonl.partial`` in the order they come; a run that
breaks off leaves that file behind.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from zerokit.errors import visible_json
from zerokit.files import check_writable, new_file
from zerokit.generation.completions import Completion
from zerokit.generation.prompts import Prompt
from zerokit.staging import open_new


def check_output(path: Path | None, *, force: bool) -> None:
    """Check that results can be written, before they are computed.

    Raises:
        ZerokitError: they cannot, or results of an earlier run are there and `force` is false.
    """
    if path is None:
        return
    check_writable(path, force=force, follow_links=True)
    check_writable(partial_path(path), force=force)


def partial_path(path: Path) -> Path:
    """Where results are kept until all of them are there."""
    return path.with_name(f"{path.name}.partial")


def claim_stdout() -> IO[str]:
    """Take stdout for results alone: whatever else in this process prints goes to stderr from now on.

    DeepSpeed, and compilers that it starts, print to stdout.
    """
    sys.stdout.flush()
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return results


def record(
    index: int, prompt: Prompt, num_prompt_tokens: int, completions: Sequence[Completion]
) -> dict[str, Any]:
    """One line of the output; several completions are listed in it."""
    head = {"index": index, prompt.field: prompt.content}
    if len(completions) == 1:
        text, *rest = completions[0].fields().items()
        return dict([*head.items(), text, ("num_prompt_tokens", num_prompt_tokens), *rest])
    return {
        **head,
        "completions": [completion.fields() for completion in completions],
        "num_prompt_tokens": num_prompt_tokens,
    }


class Results:
    """Collects records on rank 0 and writes them out in order.

    Args:
        path: the file to write; None for `stream`.
        stream: where to print without a file.
    """

    def __init__(self, path: Path | None, stream: IO[str]) -> None:
        self.path = path
        self.stream = stream
        self.records: list[dict[str, Any]] = []
        self._partial: IO[str] | None = None

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Keep records, whatever their order."""
        records = list(records)
        self.records += records
        if self.path is None:
            return
        if self._partial is None:
            self._partial = open_new(partial_path(self.path))
        self._partial.writelines(map(_line, records))
        self._partial.flush()

    def finish(self) -> None:
        """Write all records, sorted by index."""
        lines = map(_line, sorted(self.records, key=lambda record: record["index"]))
        if self.path is None:
            self.stream.writelines(map(visible_json, lines))
            self.stream.flush()
            return
        with new_file(self.path, follow_links=True) as file:
            file.writelines(map(str.encode, lines))
        if self._partial is not None:
            self._partial.close()
            partial_path(self.path).unlink(missing_ok=True)


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
