"""Whatever a file holds, it is checked and fixed without a crash."""

import json
from contextlib import suppress
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.examples import examples
from zerokit.config.key_index import sections
from zerokit.documents import Document, KeyPath, parse_json
from zerokit.findings import SetValue
from zerokit.lint import Report, check_document
from zerokit.lint.examples import llama_8b, mixture_of_experts
from zerokit.lint.fix import fix_document
from zerokit.lint.outputs import CheckedFile, text_lines, to_data, to_github, to_sarif
from zerokit.lint.rewrite import EditError, edit_data
from zerokit.lint.run import all_rules, check_launch_document
from zerokit.resolving.run import Run

PATHS: list[KeyPath] = [(*path, name) for path, model in sections().items() for name in model.model_fields]
"""Every key that has one place."""

ODD = st.sampled_from(
    [
        *(None, True, False, 0, 1, 2, 3, -1, 0.5, 1e9, 5e8, 1e30, float("nan"), float("inf"), 2**70),
        *("auto", "", "true", "false", "cpu", "nvme", "none", "AdamW", "SGD", "WarmupLR", "bf16", "1e-4", "1k"),
        *([], [0.9, 0.999], ["auto"], {}, {"enabled": True}, {"device": "nvme"}, {"type": "Muon"}, {"stage": 3}),
    ]
)
VALUES = ODD | st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    data: dict[str, Any] = {"zero_optimization": {"stage": draw(st.sampled_from([0, 1, 2, 3, "auto"]))}}
    for _ in range(draw(st.integers(0, 8))):
        path = draw(st.sampled_from(PATHS))
        if draw(st.integers(0, 9)) == 0:
            path = (*path[:-1], draw(st.sampled_from([str(path[-1])[:-1], "stage", "lr", "_comment", "x"])))
        with suppress(EditError):  # a parent is no section
            data = edit_data(data, SetValue(path, draw(VALUES)))
    return data


RUNS = st.fixed_dictionaries(
    {
        "target": st.sampled_from([None, "trainer", "accelerate", "deepspeed"]),
        "num_gpus": st.sampled_from([None, 1, 3, 8, 64]),
        "gpus_per_node": st.sampled_from([1, 4, 8]),
        "model": st.sampled_from([None, llama_8b(), mixture_of_experts()]),
        "gpu_memory_bytes": st.sampled_from([None, 24 << 30]),
        "host_memory_bytes": st.sampled_from([None, 64 << 30]),
    }
)


def has_good_form(report: Report) -> None:
    for finding in (*report.findings, *report.suppressed):
        assert finding.rule in all_rules()
        assert finding.hint
        assert finding.message
    checked = [CheckedFile("x.json", report)]
    assert list(text_lines(checked))
    assert to_data(checked)
    assert to_sarif(checked)
    assert to_github(checked).count("\n") == len(report.findings)


@examples(300)
@given(configs(), RUNS)
def test_any_config_is_checked(data: dict[str, Any], run: dict[str, Any]) -> None:
    has_good_form(check_document(Document(data, "x"), Run.of(**run)))


@examples(100)
@given(configs(), RUNS)
def test_any_config_is_fixed_once_and_for_all(data: dict[str, Any], run: dict[str, Any]) -> None:
    assume(_is_json(data))
    text = json.dumps(data, indent=2)
    fixed = fix_document(parse_json(text), lambda document: check_document(document, Run.of(**run)))
    assert fixed.document.text is not None
    parse_json(fixed.document.text)  # still plain JSON
    again = fix_document(fixed.document, lambda document: check_document(document, Run.of(**run)))
    assert again.document.text == fixed.document.text


def _is_json(data: Any) -> bool:
    if isinstance(data, dict):
        return all(map(_is_json, data.values()))
    if isinstance(data, list):
        return all(map(_is_json, data))
    return not isinstance(data, float) or data - data == 0


LAUNCH_KEYS = st.sampled_from(
    [
        *("distributed_type", "deepspeed_config", "mixed_precision", "num_processes", "num_machines"),
        *("zero_stage", "deepspeed_config_file", "offload_optimizer_device", "gradient_clipping", "machine_rank"),
    ]
)


@examples(200)
@given(st.dictionaries(LAUNCH_KEYS, VALUES | st.dictionaries(LAUNCH_KEYS, VALUES, max_size=4), max_size=6))
def test_any_launch_file_is_checked(data: dict[str, Any]) -> None:
    has_good_form(check_launch_document(Document({"distributed_type": "DEEPSPEED", **data}, "x.yaml")))
