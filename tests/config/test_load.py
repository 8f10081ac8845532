import copy
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.config.strategies import configs
from tests.examples import examples
from zerokit.config import check_ds_config, load_ds_config, load_valid_part
from zerokit.config.repairs import edited
from zerokit.documents import Document, KeyPath, dotted, parse_json, parse_yaml
from zerokit.errors import ConfigError, DocumentError


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    text = (
        '{\n"zero_optimization": {\n"stage": "2",\n"offload_param": {"devise": 1}},\n"fp17": {}, "steps_per_print": 0}'
    )
    problems = check_ds_config(parse_json(text, "ds.json"))
    assert [(problem.line, problem.column) for problem in problems] == [(3, 1), (4, 19), (5, 1), (5, 13)]


def test_mistakes_that_others_hide_are_found_as_well() -> None:
    problems = check_ds_config(Document({"bf16": True, "fp16": {"enabled": "yes"}, "zero_optimization": 3}, ""))
    assert [dotted(problem.path) for problem in problems] == ["bf16", "fp16.enabled", "zero_optimization"]
    nested = {"optimizer": {"type": "sgd", "params": {"lr": "x"}}}
    assert [problem.path[-1] for problem in check_ds_config(Document(nested, ""))] == ["type", "lr"]


def test_the_valid_part_keeps_what_is_right_and_fixes_what_is_plain() -> None:
    data = {
        "train_batch_size": "8",
        "gradient_cliping": 1.0,
        "nonsense": 1,
        "zero_optimization": {"stage": "3", "sub_group_size": -1, "stage3_max_live_parameters": 5},
        "optimizer": {"params": {"lr": 1e-3}},
        "bfloat16": {"enabled": True},
    }
    part = load_valid_part(Document(data, "ds.json"))
    assert part.config is not None
    assert part.written == {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 3, "stage3_max_live_parameters": 5},
        "bfloat16": {"enabled": True},
    }
    assert part.config == load_ds_config(part.written)
    assert part.doubtful == {()}
    assert part.misread == {("gradient_clipping",), ("zero_optimization", "sub_group_size"), ("optimizer",)}


@pytest.mark.parametrize("data", [[], "text", 3, None, True])
def test_what_is_no_section_has_no_valid_part(data: Any) -> None:
    part = load_valid_part(Document(data, "ds.json"))
    assert part.config is None
    assert len(part.findings) == 1


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("auto123e", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["stage", "enabled", "type", "params", "lr", "x"]), inner, max_size=3)
    ),
    max_leaves=4,
)


def _places(data: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _broken(config: Any, path: KeyPath, name: str, value: Any) -> Any:
    """The config with another value at `path`, or, given a name, with that key beside it."""
    config = copy.deepcopy(config)
    section = config
    for key in path[:-1]:
        section = section[key]
    section[name if name and isinstance(section, dict) else path[-1]] = value
    return config


@given(configs(), st.data())
@examples(150, suppress_health_check=list(HealthCheck))
def test_whatever_is_wrong_the_rest_loads_and_what_is_fixed_is_fixed(
    config: dict[str, Any], data: st.DataObject
) -> None:
    broken = config | {"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW", "params": {}}}
    for _ in range(2):
        path = data.draw(st.sampled_from(list(_places(broken))))
        name = data.draw(st.sampled_from(["", "", "stag", "lr", "enable", "stage3_x", str(path[-1]) + "s"]))
        broken = _broken(broken, path, name, data.draw(ANYTHING))
    part = load_valid_part(Document(broken, "ds.json"))
    assert part.config is not None
    assert load_valid_part(Document(part.written, "ds.json")).config == part.config
    for finding in part.findings:
        if finding.fix:
            after = check_ds_config(Document(edited(broken, finding.fix), "ds.json"))
            assert (finding.path, finding.rule) not in [(left.path, left.rule) for left in after]


def test_loading_raises_one_line_with_the_first_problem_and_the_number_of_others(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{\n  "gradient_cliping": 1.0,\n  "stage": 2\n}')
    with pytest.raises(ConfigError) as caught:
        load_ds_config(file)
    expected = "unknown key 'gradient_cliping' (and 1 more). Did you mean 'gradient_clipping'?"
    expected += f" zerokit check {file} names all"
    assert str(caught.value) == f"{file}:2 (gradient_cliping): {expected}"


def test_loading_takes_paths_as_text_and_any_mapping(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    from_file = load_ds_config(str(tmp_path / "ds.json"))
    assert from_file == load_ds_config(MappingProxyType({"zero_optimization": MappingProxyType({"stage": 2})}))
    document = parse_yaml("zero_optimization:\n  stage: '2'\n")
    assert load_ds_config(document) == from_file
    with pytest.raises(DocumentError, match="no such file"):
        load_ds_config(tmp_path / "absent.json")
