import pytest

from zerokit.errors import ConfigError
from zerokit.generation.options import OWN_NAMES, help_text, parse_options, wants_help

LEAST = ["--model", "m", "--prompt", "a"]


def test_the_least_that_is_needed() -> None:
    options = parse_options(LEAST)
    assert (options.model, options.texts, options.prompts) == ("m", ("a",), None)
    assert (options.batch_size, options.dtype, options.seed, options.force) == (8, "auto", 0, False)
    assert options.sampling_words == ()


def test_several_prompts() -> None:
    assert parse_options(["--model", "m", "--prompt", "a", "b", "--prompt=-c"]).texts == ("a", "b", "-c")


def test_words_of_others_keep_their_order() -> None:
    words = [
        "--model",
        "m",
        "--max_new_tokens",
        "4",
        "--prompt",
        "a",
        "--do_sample",
        "--length_penalty",
        "-1",
    ]
    assert parse_options(words).sampling_words == (
        *("--max_new_tokens", "4", "--do_sample", "--length_penalty", "-1"),
    )


def test_an_abbreviation_is_left_to_generation_config() -> None:
    assert parse_options([*LEAST, "--max", "3"]).sampling_words == ("--max", "3")


@pytest.mark.parametrize("word", ["--local_rank=1", "--local-rank=1"])
def test_the_launchers_word_is_passed_over(word: str) -> None:
    assert parse_options([*LEAST, word]).sampling_words == ()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--model: is missing"),
        (["--model", "m"], "--prompts: no prompts are given"),
        ([*LEAST, "--prompts", "f"], "--prompts: --prompt is given too"),
        ([*LEAST, "--batch-size"], "--batch-size: expected one argument"),
        ([*LEAST, "--batch-size", "0"], "--batch-size: must be at least 1, not 0"),
        ([*LEAST, "--batch-size", "many"], "--batch-size: 'many' is not a whole number"),
        ([*LEAST, "--seed", "-1"], "--seed: must be at least 0"),
        ([*LEAST, "--dtype", "half"], "--dtype: invalid choice: 'half'"),
        ([*LEAST, "--force=yes"], "--force: ignored explicit argument 'yes'"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(words)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_help_names_every_option() -> None:
    assert wants_help(["--model", "m", "-h"])
    assert not wants_help(LEAST)
    assert all(name in help_text() for name in OWN_NAMES)
