"""Trials of data: files that are replaced, and values that look like something else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from tests.data.formats import OF_TEXTS
from tests.validation.faults.place import Place, in_fork
from tests.validation.faults.trials import RESUME, Trial, content, options, to

_LOOK_ALIKES = ("2021-05-01", "2021-05-01T10:00:00Z", "01", "1e5", "NA", "null", "True", "12:30")
_ROWS = [{"prompt": text, "completion": text} for text in _LOOK_ALIKES]


def _chats(answer: Any) -> str:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]
    return (json.dumps({"messages": turns}) + "\n") * 8


REFUSED = {
    "chats of numbers": _chats(5),
    "chats of true": _chats(True),
    "chats of null": _chats(None),
    "chats of objects": _chats({"text": "b"}),
    "chats of lists of texts": _chats(["b"]),
    "prompts that are numbers": '{"prompt": 1, "completion": "b"}\n' * 8,
    "a number among the prompts": '{"prompt": "a", "completion": "b"}\n' * 8 + '{"prompt": 1, "completion": "b"}\n',
    "two keys of one name": '{"prompt": "a", "completion": "b", "prompt": "c"}\n' * 8,
    "a word for infinity that is none of JSON": '{"prompt": "a", "completion": "b", "score": Inf}\n' * 8,
    "half a character": '{"prompt": "\\ud83d", "completion": "b"}\n' * 8,
    "two objects on a line": '{"prompt": "a", "completion": "b"} {"prompt": "c", "completion": "d"}\n' * 8,
    "lists too deep for a stack": '{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}\n",
    "UTF-16": ('{"prompt": "a", "completion": "b"}\n' * 8).encode("utf-16"),
}
"""Data that a run must refuse."""
REFUSED_TABLES = {
    "a quote in the midst of a cell": 'prompt,completion\n"a" b,c\n',
    "a quote that is not closed": 'prompt,completion\na,b\n"a,b\na,b\n',
    "more cells than columns": "prompt,completion\na,b,c\n",
    "two columns of one name": "prompt,prompt\na,b\n",
    "UTF-16": "prompt,completion\na,b\n".encode("utf-16"),
}


def _replace_data(place: Place) -> None:
    """Put other data of the same size and time in the place of those that were read."""
    file = place.path("data.jsonl")

    def read() -> None:
        import datasets

        from zerokit.data.sources import load_examples

        datasets.config.HF_DATASETS_CACHE = place.path("cache")
        load_examples(str(file), where="data.train")

    in_fork(read)
    before = file.stat()
    file.write_text(file.read_text().replace("A number", "A figure"))
    assert file.stat().st_size == before.st_size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def data_trials() -> Iterator[Trial]:
    """All of them."""
    yield Trial(
        "resume, data replaced by others of their size and time",
        options(*RESUME, then=_replace_data), "refuse", resumes=True,
    )  # fmt: skip
    for name, write in OF_TEXTS.items():
        file = f"like_{name}"
        yield Trial(
            f"texts that look like dates and numbers in {name}",
            options("--data.train", file, then=to(file, content(write(_ROWS)))), "do",
        )  # fmt: skip
    for name, text in REFUSED.items():
        yield Trial(f"data with {name}", to("data.jsonl", content(text)), "refuse")
    for name, text in REFUSED_TABLES.items():
        arrange = options("--data.train", "data.csv", then=to("data.csv", content(text)))
        yield Trial(f"a table with {name}", arrange, "refuse")
