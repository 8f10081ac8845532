"""Writes results: one JSON line per prompt in the order of the input, in a file that is complete or missing.

During a run the results are in ``OUT.jsonl.partial`` in the order of completion, below a line that identifies
the job; an interrupted run leaves it, to be continued.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from zerokit.console import discard
from zerokit.documents import is_file, replace_nonfinite
from zerokit.errors import DataError, ZerokitError, printable, visible_json
from zerokit.files import check_writable, explain_file_errors, explain_write_errors, new_file
from zerokit.generation.prompts import Prompt, Prompts
from zerokit.generation.sampling import end_tokens
from zerokit.staging import check_own_name, make_private_file, open_private_file

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase


def check_output(path: Path | None, *, force: bool, resume: bool = False) -> None:
    """Check, before computing, that results can be written (ZerokitError); over earlier ones only with `force`."""
    if path is None:
        return
    if resume and not force and is_finished(path):
        _check_results(path)
        return
    check_writable(path, force=force, follow_links=True)
    partial = partial_path(path)
    if partial is not None:
        if os.path.lexists(partial) and not (force or resume):
            hint = "Add --resume to continue that run, or --force to start over"
            raise ZerokitError("a run that was stopped has left it", where=partial, hint=hint)
        check_writable(partial)


def partial_path(path: Path) -> Path | None:
    """File for results until all are there; None for a pipe or a device."""
    is_special = path.exists() and not path.is_file()
    return None if is_special else path.with_name(f"{path.name}.partial")


def is_finished(path: Path) -> bool:
    """Whether a run has written all its results to `path`."""
    return is_file(path) and not os.path.lexists(partial_path(path) or "")


def _check_results(path: Path) -> None:
    """Check that a file has results. DataError if it has something else, or nothing."""
    with explain_file_errors(), path.open("rb") as lines:
        others = (number for number, line in enumerate(lines, start=1) if not _is_record(_parsed(line)))
        number = next(others, None) if path.stat().st_size else 1
    if number is not None:
        hint = "Name another file, or replace --resume by --force to overwrite it"
        raise DataError("is no result of zerokit generate", where=f"{printable(path)}:{number}", hint=hint)


@contextmanager
def claim_stdout() -> Iterator[IO[str]]:
    """Reserve stdout for results: other output of this process goes to stderr from now on.

    Raises:
        ZerokitError: the shell has closed it.
        BrokenPipeError: its reader ended before :func:`write_results`; raised when the block ends.
    """
    try:
        sys.stdout.flush()
        stdout = sys.stdout.fileno()
    except io.UnsupportedOperation:
        raise ZerokitError("is closed", where="stdout", hint="Redirect it to a file or to /dev/null") from None
    results = os.fdopen(os.dup(stdout), "w", encoding="utf-8")
    try:
        os.dup2(sys.stderr.fileno(), stdout)
    except io.UnsupportedOperation:  # closed
        discard(stdout)
    with results:
        yield results
        if results.closed:
            raise BrokenPipeError


def write_results(stream: IO[str], lines: Iterable[str]) -> None:
    """Write lines to the stream of :func:`claim_stdout`, and close it if its reader has ended.

    Raises:
        ZerokitError: they cannot be written.
    """
    try:
        stream.writelines(lines)
        stream.flush()
    except BrokenPipeError:  # the other ranks need not know
        with suppress(BrokenPipeError):
            stream.close()
    except OSError as error:
        discard(stream.fileno())  # what is left in its buffer
        hint = "Make room on that disk, or name another file"
        raise ZerokitError(f"cannot be written: {error.strerror}", where="stdout", hint=hint) from None


def record(index: int, prompt: Prompt, num_prompt_tokens: int, completions: Sequence[Completion]) -> dict[str, Any]:
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


def failed_record(index: int, prompts: Prompts, error: ZerokitError) -> dict[str, Any]:
    """The line of a prompt that cannot be used, with what the input has in its place."""
    value = replace_nonfinite(json.loads(json.dumps(prompts.values[index], default=str)))
    is_chat = prompts.column == "messages" or (prompts.column == "prompt" and isinstance(value, list))
    key = "messages" if is_chat else "prompt"
    return {"index": index, key: value, "finish_reason": "error", "error": str(error)}


class Results:
    """Keeps records on disk as they are made; writes them in order to `path` or, if it is None, to `stream`.

    Args:
        job: what decides the results, by name: options with their values (``--seed``), and digests of the rest.
        num_prompts: of the job; each gets a record.
        resume: keep the records of an earlier run of the same job.
        force: whether to replace what another run has written since the check of the output.

    Raises:
        ZerokitError: the partial file is of another job, damaged, or in use; or there are results to replace.
    """

    def __init__(
        self,
        path: Path | None,
        stream: IO[str],
        job: Mapping[str, Any],
        *,
        num_prompts: int,
        resume: bool = False,
        force: bool = True,
    ) -> None:
        if not force:
            check_output(path, force=force, resume=resume)
        self.path = path
        self._force = force
        self.stream = stream
        self.places: dict[int, tuple[int, int]] = {}
        """Index of each record -> its place in the file, and its bytes."""
        self._job = json.loads(json.dumps(job, default=vars))
        self._num_prompts = num_prompts
        self._partial = None if path is None else partial_path(path)
        self._file: IO[bytes] | None = None
        self._earlier: IO[bytes] | None = None
        """A partial file to replace; until then no run may continue it."""
        self._end = 0
        if self._partial is not None and os.path.lexists(self._partial):
            if resume:
                check_own_name(self._partial)
            with explain_write_errors(self._partial):
                file = _open_partial(self._partial)
            if resume:
                self._file = file
                self._read(self._partial)
            else:
                self._earlier = file

    def add(self, record: Mapping[str, Any]) -> None:
        """Keep a record, whatever their order. ZerokitError if it cannot be written."""
        if record["index"] in self.places:
            return
        with explain_write_errors(self._partial or Path(tempfile.gettempdir())):
            if self._earlier is not None and self._partial is not None:
                with self._earlier:
                    if _is_open_at(self._earlier, self._partial):
                        self._partial.unlink()
                self._earlier = None
            if self._file is None:
                self._file = self._new_partial()
            if not self._end:
                self._file.truncate(0)
                self._append({"job": self._job})
            self.places[record["index"]] = self._append(record)

    def _new_partial(self) -> IO[bytes]:
        """Make the partial file. ZerokitError if another run has written results since this one began."""
        file = _open_partial(self._partial)
        if self._force or self.path is None or self._partial is None:
            return file
        is_empty = not os.fstat(file.fileno()).st_size
        if not is_empty or self.path.exists():
            with file:
                if is_empty:  # this run has just made it
                    self._partial.unlink()
            raise ZerokitError("another run has written it meanwhile", where=self.path, hint=_MEANWHILE)
        return file

    def finish(self) -> None:
        """Write all records, sorted by index."""
        if self.path is None:
            write_results(self.stream, (visible_json(line.decode()) for line in self._sorted()))
            return
        with new_file(self.path, follow_links=True) as file:
            file.writelines(self._sorted())
        if self._file is not None:
            if self._partial is not None and _is_open_at(self._file, self._partial):
                self._partial.unlink()
            self._file.close()

    def _sorted(self) -> Iterator[bytes]:
        for _, (start, size) in sorted(self.places.items()):
            assert self._file is not None
            yield os.pread(self._file.fileno(), size, start)

    def _append(self, record: Mapping[str, Any]) -> tuple[int, int]:
        assert self._file is not None
        start, line = self._end, _line(record)
        while line:  # a disk that is almost full takes a part
            written = self._file.write(line)
            self._end, line = self._end + written, line[written:]
        return start, self._end - start

    def _read(self, partial: Path) -> None:
        assert self._file is not None
        with partial.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                is_whole = line.endswith(b"\n")
                if not is_whole and (number > 1 or _line({"job": self._job}).startswith(line)):
                    break  # cut off when the run was killed
                found = _parsed(line)
                if is_whole and number == 1 and isinstance(found, dict) and isinstance(found.get("job"), dict):
                    self._refuse_other_job(found["job"])
                elif number > 1 and _is_record(found) and self._is_new(found["index"]):
                    self.places[found["index"]] = (self._end, len(line))
                else:
                    where = f"{printable(partial)}:{number}"
                    raise DataError("is no record of zerokit generate", where=where, hint=_OTHER_JOB)
                self._end += len(line)
        self._file.truncate(self._end)

    def _is_new(self, index: int) -> bool:
        return 0 <= index < self._num_prompts and index not in self.places

    def _refuse_other_job(self, job: Mapping[str, Any]) -> None:
        for name in [*self._job, *job]:
            mine, other = (str(each.get(name, "not given")) for each in (self._job, job))
            if mine != other:
                values = f" ({other} there, {mine} here)" if name.startswith("--") else ""
                where = printable(self._partial or "")
                raise ZerokitError(f"is of a run with other {name}{values}", where=where, hint=_OTHER_JOB)


_MEANWHILE = "Name another file, or start again with --force to replace it"
_OTHER_JOB = "Repeat the options of that run, or add --force without --resume to start over"


def _open_partial(partial: Path | None) -> IO[bytes]:
    """Open and lock a partial file; its content stays. ZerokitError if another run is writing it."""
    if partial is None:
        return tempfile.TemporaryFile(buffering=0)
    make_private_file(partial)
    file: IO[bytes] = open_private_file(partial, "a+b", buffering=0)
    is_locked = True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        is_locked = False
    except OSError:
        pass  # a file system without locks
    if not is_locked or not _is_open_at(file, partial):  # which the other run has just finished
        raise ZerokitError("another run is writing it", where=partial, hint="Wait for its end")
    return file


def _is_open_at(file: IO[bytes], path: Path) -> bool:
    """Whether a path still names an open file."""
    return os.path.lexists(path) and os.path.samestat(os.fstat(file.fileno()), path.lstat())


def _parsed(line: bytes) -> Any:
    """The value of a line of JSON; None if it is none."""
    with suppress(ValueError, RecursionError):
        return json.loads(line)


def _is_record(value: Any) -> bool:
    """Whether :func:`record` or :func:`failed_record` may have made a value."""
    if not isinstance(value, dict) or type(value.get("index")) is not int:
        return False
    return any(value.keys() >= keys for keys in _KEYS) and ("prompt" in value) != ("messages" in value)


_KEYS: Sequence[set[str]] = (
    {"completion", "num_prompt_tokens", "num_completion_tokens", "finish_reason"},
    {"completions", "num_prompt_tokens"},
    {"error", "finish_reason"},
)
"""Keys of records, without those of the prompt."""


def _line(record: Mapping[str, Any]) -> bytes:
    # What is not UTF-8 on the command line has no other form in JSON.
    return f"{json.dumps(record, ensure_ascii=False)}\n".encode(errors="replace")


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
        return {"completion": self.text, "num_completion_tokens": self.num_tokens, "finish_reason": self.finish_reason}


class CompletionCutter:
    """Cuts generated tokens where the completion ends."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: GenerationConfig) -> None:
        stops = config.stop_strings or []
        stop_strings = [stops] if isinstance(stops, str) else stops
        # A special token is not in the text, so as a stop string it is looked for among the tokens.
        special = tokenizer.get_added_vocab()
        self.tokenizer = tokenizer
        self.end_tokens = end_tokens(config) | {special[stop] for stop in stop_strings if stop in special}
        self.stop_strings = [stop for stop in stop_strings if stop not in special]
        self._criterion: Any = None
        if stop_strings:
            from transformers import StopStringCriteria

            self._criterion = StopStringCriteria(tokenizer, stop_strings)

    def __call__(self, tokens: Sequence[int], prompt: Sequence[int] = ()) -> Completion:
        """The completion at the beginning of `tokens`; the rest is padding.

        Args:
            prompt: tokens before it, in which a stop string may begin; its end ends the completion, too.
        """
        end = next((at for at, token in enumerate(tokens) if token in self.end_tokens), None)
        body = tokens if end is None else tokens[:end]
        if (count := self._tokens_until_stop_of_prompt(prompt, body)) is not None:
            return Completion("", count, "stop")
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
            range(len(tokens)), True, key=lambda count: self._first_stop(self._decode(tokens[:count])) is not None
        )

    def _tokens_until_stop_of_prompt(self, prompt: Sequence[int], tokens: Sequence[int]) -> int | None:
        """Number of tokens that complete a stop string which begins in the prompt, as transformers sees it."""
        # Tokens that the criterion looks at before the last one.
        before = 0 if self._criterion is None else self._criterion.maximum_token_len - 1
        if not (before and prompt and tokens):
            return None
        import torch

        blanks = [len(self._criterion.embedding_vec) - 1] * before  # without text
        first, alone = (
            self._criterion(torch.tensor([*start[-before:], *tokens[:before]]).unfold(0, before + 1, 1), None)
            for start in ([*blanks, *prompt], blanks)
        )
        at = int(first.int().argmax())
        return at + 1 if first[at] and not alone[at] else None
