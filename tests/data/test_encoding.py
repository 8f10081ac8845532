"""Long texts and chat templates: bounded, and otherwise what the tokenizer makes of them."""

from __future__ import annotations

import copy
import resource
import signal
from typing import TYPE_CHECKING

import pytest

from tests.tiny import tiny_tokenizer
from zerokit.data import encoding
from zerokit.data.encoding import encode, render_chat
from zerokit.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

pytestmark = pytest.mark.torch

CHAT = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("text", ["The for statement is used to iterate, " * 9, "x" * 200, "", "  a b  c " * 20])
def test_pieces_give_the_tokens_of_the_whole(
    text: str, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encode(tokenizer, text)
    assert whole == tokenizer(text)["input_ids"]
    monkeypatch.setattr(encoding, "_PIECE", 50)
    assert tokenizer.decode(encode(tokenizer, text)) == text
    if "  " not in text:
        assert encode(tokenizer, text) == whole
    assert encode(tokenizer, text, most=7) == whole[:7]


def test_what_is_left_out_is_not_encoded(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def count(text: str, **options: bool) -> dict[str, list[int]]:
        encoded.append(len(text))
        return {"input_ids": [5] * len(text)}

    monkeypatch.setattr(type(tokenizer), "__call__", lambda self, text, **options: count(text, **options))
    assert len(encode(tokenizer, "a line of data " * 4_000_000, most=65)) == 65
    assert sum(encoded) < 300_000


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "line 2: takes more"),
        ("{{ 'a' * 10**10 }}", "line 1: takes more than 512 MiB of memory"),
        ("\n\n{{ messages[7].role }}", "line 3: list object has no element 7"),
        ("\n{% if %}", "line 2: Expected an expression"),
        ("{{ raise_exception('no system role') }}", "line 1: no system role"),
    ],
)
def test_a_template_has_limits_and_errors_name_its_line(
    template: str, message: str, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "TEMPLATE_SECONDS", 0.2)
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    before = resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(DataError, match=f"^{message}"):
        render_chat(other, CHAT)
    assert before == (resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGVTALRM))
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert render_chat(tokenizer, CHAT, add_generation_prompt=True) == "<|user|>Hi<|end|><|assistant|>"
