import json
import pickle
import traceback

import pytest

from zerokit import errors
from zerokit.console import print_error
from zerokit.errors import ConfigError, ZerokitError, did_you_mean, nearest


def test_an_error_is_one_line_of_what_where_and_how() -> None:
    error = ConfigError("unknown\n  key", where="a.json:3", hint="Remove\nit.")
    assert str(error) == "a.json:3: unknown key. Remove it"


def test_spaces_and_joiners_of_a_script_stay() -> None:
    text = "日本\u3000語 می\u200cخو 👨\u200d👩 10\u202f000 a\xa0b"
    assert errors.visible(text) == str(ZerokitError(text)) == text
    assert json.loads(errors.visible_json(json.dumps(text, ensure_ascii=False))) == text
    assert errors.visible("a\u200b\ufeff\xad\u2029\ue000") == r"a\u200b\ufeff\xad\u2029\ue000"


def test_lines_and_colours_of_a_log_stay() -> None:
    log = "\x1b[1;31mname\x1b[0m\n a\x1b]0;owned\x07\r"
    assert errors.visible_lines(log) == "\x1b[1;31mname\x1b[0m\n a\\x1b]0;owned\\x07\\r"


def test_names_cannot_move_the_cursor_hide_or_break_the_line() -> None:
    error = ZerokitError("no key '\x1b[2J\u202e\udcff'", where="a\x07b.json", hint="Mend '\x9b1m\u2028é'")
    assert str(error) == r"a\x07b.json: no key '\x1b[2J\u202e\udcff'. Mend '\x9b1m é'"


def test_there_is_one_tree_and_it_means_unusable_input() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 5
    assert all(issubclass(kind, ZerokitError) for kind in kinds)
    usable = {kind for kind in kinds if kind.exit_code != 2}  # the input was
    assert usable == {errors.RunError, errors.RankError, errors.PreemptedError}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gradient_cliping", "gradient_clipping"), ("Gradient-Clipping", "gradient_clipping"), ("zzz", None)],
)
def test_nearest(name: str, expected: str | None) -> None:
    assert nearest(name, ["gradient_clipping", "stage"]) == expected


def test_hints_name_the_nearest_or_list_a_few_choices() -> None:
    assert did_you_mean("cpuu", ["cpu", "nvme"]) == "Did you mean 'cpu'?"
    assert did_you_mean("disk", ["cpu", "nvme"]) == "Choose one of: cpu, nvme"
    assert "similar" in did_you_mean("disk", [f"key{number}" for number in range(20)])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CosineWarmup", "WarmupCosineLR"),  # all its words, though 'WarmupLR' looks more alike
        ("lr-warmup", "WarmupLR"),
        ("warmup_lr_cosine", "WarmupCosineLR"),
        ("Warmup", "WarmupLR"),
    ],
)
def test_the_order_of_words_does_not_matter(name: str, expected: str) -> None:
    assert nearest(name, ["LRRangeTest", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"]) == expected


def test_of_choices_with_the_same_words_the_one_that_looks_more_alike_is_named() -> None:
    choices = ["offload_optimizer_device", "offload_param_device"]
    assert nearest("offload_params_device", choices) == "offload_param_device"
    assert nearest("device_offload", choices) is None


def test_errors_that_are_told_at_once_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    pair = errors.combine_errors([ZerokitError("first"), ZerokitError("second")])
    assert pair is not None
    told = errors.combine_errors([pair, ConfigError("third", where="a.json")])
    assert told is pair
    assert [str(other) for other in told.others] == ["second", "a.json: third"]
    assert [str(error) for error in pickle.loads(pickle.dumps(told)).others] == ["second", "a.json: third"]
    shown = "".join(traceback.format_exception(pickle.loads(pickle.dumps(told))))
    assert shown == "zerokit.errors.ZerokitError: first\nsecond\na.json: third\n"
    print_error(told)
    said = capsys.readouterr().err
    assert said == "".join(f"zerokit: error: {what}\n" for what in ("first", "second", "a.json: third"))
    assert errors.combine_errors([]) is None
