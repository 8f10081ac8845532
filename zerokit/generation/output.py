"""Writes results: one JSON line per prompt in the order of the input, in a file that is complete or missing.

During a run the results are in ``OUT.jsonl.partial`` in the order of completion; an interrupted run leaves
it.
"""

from __future__ import annotations

import json
import os
import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from zerokit.errors import visible_json
from zerokit.files import check_writable, explain_write_errors, new_file
from zerokit.generation.prompts import Prompt
from zerokit.staging import open_new

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_output(path: Path | None, *, force: bool) -> None:
    """Check, before computing, that results can be written (ZerokitError); earlier ones only with `force`."""
    if path is None:
        return
    check_writable(path, force=force, follow_links=True)
    partial = partial_path(path)
    if partial is not None:
        check_writable(partial, force=force)


def partial_path(path: Path) -> Path | None:
    """File for results until all are there; None for a pipe or a device."""
    is_special = path.exists() and not path.is_file()
    return None if is_special else path.with_name(f"{path.name}.partial")


def claim_stdout() -> IO[str]:
    """Reserve stdout for results: other output of this process goes to stderr from now on."""
    sys.stdout.flush()
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return results


def record(
    index: int, prompt: Prompt, num_prompt_tokens: int, completions: Sequence[Completion]
) -> dict[str, Any]:
    """One line of the output, with one or several completions."""
    head = {"index": index, "prompt" if isinstance(prompt, str) else "messages": prompt}
    if len(completions) == 1:
        text, *rest = completions[0].fields().items()
        return dict([*head.items(), text, ("num_prompt_tokens", num_prompt_tokens), *rest])
    return {
        **head,
        "completions": [completion.fields() for completion in completions],
        "num_prompt_tokens": num_prompt_tokens,
    }


class Results:
    """Collects records on rank 0 and writes them in order, to `path` or, if it is None, to `stream`."""

    def __init__(self, path: Path | None, stream: IO[str]) -> None:
        self.path = path
        self.stream = stream
        self.records: list[dict[str, Any]] = []
        self._partial: IO[str] | None = None

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Keep records, whatever their order. ZerokitError if they cannot be written."""
        records = list(records)
        self.records += records
        partial = None if self.path is None else partial_path(self.path)
        if partial is None:
            return
        with explain_write_errors(partial):
            if self._partial is None:
                self._partial = open_new(partial)
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
            Path(self._partial.name).unlink(missing_ok=True)


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Completion:
    """The generated text for a prompt."""

    text: str
    """Without special tokens, and without the stop string that ended it."""
    num_tokens: int
    """Tokens generated, the one that ended it included."""
    finish_reason: str
    """``stop`` at an end token or a stop string, else ``length``."""

    def fields(self) -> dict[str, Any]:
        """Its part of a record."""
        return {
            "completion": self.text,
            "num_completion_tokens": self.num_tokens,
            "finish_reason": self.finish_reason,
        }


class CompletionCutter:
    """Cuts generated tokens where the completion ends."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, end_tokens: frozenset[int], stop_strings: Sequence[str]
    ) -> None:
        # A special token is not in the text, so as a stop string it is looked for among the tokens.
        special = tokenizer.get_added_vocab()
        self.tokenizer = tokenizer
        self.end_tokens = end_tokens | {special[stop] for stop in stop_strings if stop in special}
        self.stop_strings = [stop for stop in stop_strings if stop not in special]

    def __call__(self, tokens: Sequence[int]) -> Completion:
        """The completion at the beginning of `tokens`; the rest is padding."""
        end = next((at for at, token in enumerate(tokens) if token in self.end_tokens), None)
        body = tokens if end is None else tokens[:end]
        text = self._decode(body)
        cut = self._first_stop(text)
        if cut is not None:
            return Completion(text[:cut], self._tokens_until_stop(body), "stop")
        if end is not None:
            return Completion(text, end + 1, "stop")
        return Completion(text, len(tokens), "length")

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _first_stop(self, text: str) -> int | None:
        found = [text.find(stop) for stop in self.stop_strings]
        return min((at for at in found if at >= 0), default=None)

    def _tokens_until_stop(self, tokens: Sequence[int]) -> int:
        """Number of tokens until a stop string was complete."""
        return bisect_left(
            range(len(tokens)),
            True,
            key=lambda count: self._first_stop(self._decode(tokens[:count])) is not None,
        )
