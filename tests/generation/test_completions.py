import pytest

from zerokit.generation.completions import Completion, Finisher
from zerokit.generation.model import ModelFiles

END, PAD = 0, 1


def tokens_of(model: ModelFiles, text: str) -> list[int]:
    return list(model.tokenizer(text)["input_ids"])


@pytest.mark.parametrize("padding", [[], [PAD, PAD], [END]])
def test_ends_at_the_end_token(model: ModelFiles, padding: list[int]) -> None:
    tokens = tokens_of(model, "The sequence")
    finish = Finisher(model.tokenizer, frozenset({END}), [])
    assert finish([*tokens, END, *padding]) == Completion("The sequence", len(tokens) + 1, "stop")


def test_without_an_end_it_is_cut_by_length(model: ModelFiles) -> None:
    tokens = tokens_of(model, "The sequence")
    finish = Finisher(model.tokenizer, frozenset({END}), ["never"])
    assert finish(tokens) == Completion("The sequence", len(tokens), "length")


def test_nothing_but_the_end(model: ModelFiles) -> None:
    assert Finisher(model.tokenizer, frozenset({END}), [])([END]) == Completion("", 1, "stop")


def test_ends_before_the_first_stop_string(model: ModelFiles) -> None:
    finish = Finisher(model.tokenizer, frozenset({END}), ["zzz", "\n", "!"])
    tokens = tokens_of(model, "One! Two\n")
    assert finish([*tokens, END]) == Completion("One", len(tokens_of(model, "One!")), "stop")


def test_a_special_token_as_stop_string(model: ModelFiles) -> None:
    tokens = tokens_of(model, "One")
    finish = Finisher(model.tokenizer, frozenset(), ["<|pad|>"])
    assert finish([*tokens, PAD, *tokens]) == Completion("One", len(tokens) + 1, "stop")
