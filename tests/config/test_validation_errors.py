from typing import Any

import pytest

from tests.json_data import load_json
from zerokit.config import check_ds_config, load_ds_config, load_valid_part
from zerokit.documents import Document, dotted, parse_json, parse_yaml
from zerokit.findings import Finding, SetValue

ROWS = load_json("config/test_validation_errors.json")


def only(data: Any) -> Finding:
    (finding,) = check_ds_config(Document(data, "ds.json"))
    return finding


@pytest.mark.parametrize(
    ("data", "rule", "message", "hint"),
    [*ROWS["values_are_named_in_plain_words"], ({3: 1}, "bad-key", "is not a string", "double quotes")],
)
def test_values_are_named_in_plain_words(data: Any, rule: str, message: str, hint: str) -> None:
    finding = only(data)
    assert (finding.rule, finding.severity) == (rule, "error")
    assert message in finding.message
    assert finding.hint is not None
    assert hint in finding.hint
    assert "\n" not in finding.message + finding.hint
    assert not finding.message.endswith(".")
    assert not finding.hint.endswith(".")


@pytest.mark.parametrize(("section", "type_", "params", "key", "message"), ROWS["parameters_are_checked_by_the_type"])
def test_parameters_are_checked_by_the_type(
    section: str, type_: str, params: dict[str, Any], key: str, message: str
) -> None:
    finding = only({section: {"type": type_, "params": params}})
    assert key in dotted(finding.path)
    assert message in finding.message
    assert finding.severity == "error"


@pytest.mark.parametrize(
    ("data", "severity"),
    [
        ({"prescale_gradients": "false"}, "error"),
        ({"prescale_gradients": "No"}, "error"),
        ({"prescale_gradients": "maybe"}, "error"),
        ({"prescale_gradients": "true"}, "warning"),
        ({"checkpoint": {"load_universal": "false"}}, "error"),
        ({"activation_checkpointing": {"cpu_checkpointing": "0"}}, "error"),
        ({"optimizer": {"type": "Adam", "params": {"bias_correction": "false"}}}, "error"),
    ],
)
def test_strings_that_deepspeed_takes_for_true_are_named(data: dict[str, Any], severity: str) -> None:
    finding = only(data)
    assert (finding.rule, finding.severity) == ("string-switch", severity)


@pytest.mark.parametrize(
    ("data", "severity"),
    [
        ({"wall_clock_breakdown": "true"}, "error"),  # DeepSpeed adds it to another with |
        ({"wall_clock_breakdown": 1}, "warning"),
        ({"checkpoint": {"parallel_write": {"pipeline_stage": "true"}}}, "error"),
        ({"pipeline": {"pipe_partitioned": 1}}, "error"),  # it asks for the type
    ],
)
def test_switches_that_deepspeed_tests_are_checked_more_closely(data: dict[str, Any], severity: str) -> None:
    finding = only(data)
    assert (finding.rule, finding.severity) == ("wrong-type", severity)


@pytest.mark.parametrize(
    ("data", "path", "value"),
    [
        ({"zero_optimization": {"overlap_comm": "false"}}, "zero_optimization.overlap_comm", False),
        ({"zero_optimization": {"overlap_comm": 1}}, "zero_optimization.overlap_comm", True),
        ({"zero_optimization": {"stage": "3"}}, "zero_optimization.stage", 3),
        ({"zero_optimization": {"reduce_bucket_size": "500000"}}, "zero_optimization.reduce_bucket_size", 500000),
        ({"csv_monitor": {"enabled": 1}}, "csv_monitor.enabled", True),
        ({"prescale_gradients": 1}, "prescale_gradients", True),
    ],
)
def test_what_deepspeed_reads_for_what_it_plainly_means_is_a_warning(
    data: dict[str, Any], path: str, value: Any
) -> None:
    finding = only(data)
    assert (finding.rule, finding.severity) == ("wrong-type", "warning")
    assert finding.fix == (SetValue(tuple(path.split(".")), value),)
    node: Any = load_ds_config(data).dump()
    for key in path.split("."):
        node = node[key]
    assert node is value or node == value


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("reduce_bucket_size", "5e8", 500_000_000),
        ("reduce_bucket_size", "1k", 1000),
        ("reduce_bucket_size", "1_000", 1000),
        ("reduce_bucket_size", "2.5M", 2_500_000),
        ("reduce_bucket_size", " 8 ", 8),
    ],
)
def test_numbers_as_people_write_them_are_fixed_in_json_and_understood_in_yaml(
    key: str, text: str, value: int
) -> None:
    path = ("zero_optimization", key)
    in_json = load_valid_part(parse_json(f'{{"zero_optimization": {{"{key}": "{text}"}}}}'))
    assert in_json.findings[0].fix == (SetValue(path, value),)
    in_yaml = load_valid_part(parse_yaml(f'zero_optimization:\n  {key}: "{text}"\n'))
    assert in_yaml.findings == []
    for part in (in_json, in_yaml):
        assert part.config is not None
        assert part.config.zero_optimization.reduce_bucket_size == value


def test_suffixes_of_bytes_are_not_guessed() -> None:
    assert only({"aio": {"block_size": "1M"}}).fix == ()
    assert only({"aio": {"block_size": "1MiB"}}).fix == (SetValue(("aio", "block_size"), 2**20),)


def test_other_mistakes_are_named_in_yaml_too() -> None:
    document = parse_yaml('train_batch_size: "x"\nprescale_gradients: "false"\n')
    assert [finding.rule for finding in check_ds_config(document)] == ["wrong-type", "string-switch"]


@pytest.mark.parametrize("data", ROWS["what_deepspeed_takes_in_earnest_is_taken"])
def test_what_deepspeed_takes_in_earnest_is_taken(data: dict[str, Any]) -> None:
    assert check_ds_config(Document(data, "ds.json")) == []
