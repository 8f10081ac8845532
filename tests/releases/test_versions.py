"""The table of DeepSpeed's releases: against the installed one, against its evidence, and fact by fact."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import processes
from tests.each import each
from tests.json_data import load_json
from tools.deepspeed_surface.evidence import EVIDENCE
from tools.deepspeed_surface.extract import read_names, read_release
from zerokit.documents import KeyPath
from zerokit.errors import ConfigError
from zerokit.lint.defects import CHANGES, KNOWN_DEFECTS
from zerokit.releases import versions
from zerokit.releases.versions import (
    NEWEST,
    NO_DEFAULT,
    OLDEST,
    SUPPORTED,
    Version,
    default_at,
    key_facts,
    known_at,
    optimizers_at,
    parse_version,
    refused_at,
    schedulers_at,
)

deepspeed = pytest.importorskip("deepspeed")

from deepspeed.runtime import config as ds_config  # noqa: E402
from deepspeed.runtime import constants, lr_schedules  # noqa: E402
from deepspeed.runtime.activation_checkpointing.config import ACT_CHKPT_DEFAULT  # noqa: E402
from deepspeed.runtime.swap_tensor.aio_config import AIO_DEFAULT_DICT  # noqa: E402

pytestmark = pytest.mark.torch

ROOT = Path(deepspeed.__file__).parents[1]
INSTALLED = deepspeed.__version__.split("+")[0]
ALL = [parse_version(text) for text in SUPPORTED]
TABLE = json.loads(Path(versions.__file__).with_name("keys.json").read_text(encoding="utf-8"))


def path_of(name: str) -> KeyPath:
    return tuple(name.split("."))


def installed() -> Version:
    assert INSTALLED in SUPPORTED, f"add DeepSpeed {INSTALLED}: see tools/deepspeed_surface/extract.py"
    return parse_version(INSTALLED)


# The table itself


def test_versions_are_in_order_and_those_of_the_table() -> None:
    assert sorted(ALL) == ALL
    assert len(set(ALL)) == len(ALL)
    assert (ALL[0], ALL[-1]) == (OLDEST, NEWEST)
    rows = [row for part in ("refused", "strict", "optimizers", "schedulers") for row in TABLE[part].values()]
    rows += [facts.get("spans", []) for facts in TABLE["keys"].values()]
    named = {version for row in rows for span in row for version in span if version}
    named |= {version for facts in TABLE["keys"].values() for version, _ in facts.get("defaults", ())}
    assert named <= set(SUPPORTED)


def test_the_table_is_read_when_a_fact_is_first_requested() -> None:
    code = (
        "from zerokit.releases import versions\n"
        "version = versions.parse_version('0.16.4')\n"
        "assert versions._table.cache_info().currsize == 0\n"
        "assert versions.known_at(('zero_optimization',), version)\n"
        "assert versions._table.cache_info().currsize == 1"
    )
    processes.checked([sys.executable, "-c", code])


@each([*TABLE["keys"], *TABLE["refused"]], by=lambda name: name.split(".")[0])
def test_facts_of_a_key_agree_with_each_other(name: str) -> None:
    path = path_of(name)
    facts = key_facts(path)
    assert facts is not None
    assert facts.path == path
    edges = [edge for span in facts.spans for edge in (span.since, span.until)]
    inner = [edge for edge in edges if edge is not None]
    assert inner == sorted(inner)
    assert None not in edges[1:-1]
    for version in ALL:
        known = any(version in span for span in facts.spans)
        assert known_at(path, version) == known
        assert not (known and refused_at(path, version))
        if not known:
            assert default_at(path, version) is NO_DEFAULT
    for (before, old), (after, new) in zip(facts.defaults, facts.defaults[1:], strict=False):
        assert before < after
        assert old != new


# Against the installed DeepSpeed


def test_the_column_of_the_installed_version_is_its_source() -> None:
    version, surface = installed(), read_release(ROOT)
    tracked = {path_of(name) for name in TABLE["keys"] if known_at(path_of(name), version)}
    assert tracked <= set(surface.keys)
    # Inside of sections that newer releases no longer have, keys are not told apart.
    others = set(surface.keys) - tracked
    assert all(known_at(path, version) for path in others)
    assert not others or version != NEWEST
    for path in tracked:
        default = surface.keys[path].default
        stated = default_at(path, version)
        assert stated is NO_DEFAULT or stated == default, path
    assert {path_of(name) for name in TABLE["refused"] if refused_at(path_of(name), version)} == surface.refused
    for path in surface.strict:
        assert refused_at((*path, "no such key"), version)
    names = read_names(ROOT)
    assert optimizers_at(version) == set(names["optimizers"])
    assert schedulers_at(version) == set(names["schedulers"])


def test_constants_of_the_installed_version_are_the_defaults_of_the_table() -> None:
    version = installed()
    for section, values in (("aio", AIO_DEFAULT_DICT), ("activation_checkpointing", ACT_CHKPT_DEFAULT)):
        known = {n for n in TABLE["keys"] if n.startswith(f"{section}.") and known_at(path_of(n), version)}
        assert known == {f"{section}.{key}" for key in values}
        assert values == {key: default_at((section, key), version) for key in values}
    checked = 0
    for name, value in vars(constants).items():
        default = default_at((name.lower(),), version)
        if f"{name}_DEFAULT" in vars(constants) and name.lower() == value and default is not NO_DEFAULT:
            assert default == getattr(constants, f"{name}_DEFAULT"), value
            checked += 1
    assert checked >= 15
    assert {name.lower() for name in ds_config.DEEPSPEED_OPTIMIZERS} == optimizers_at(version)
    assert set(lr_schedules.VALID_LR_SCHEDULES) == schedulers_at(version)


class Watched(dict[str, Any]):
    """A section that notes which keys are looked up."""

    def __init__(self, path: KeyPath, seen: set[KeyPath], content: dict[str, Any]) -> None:
        super().__init__({k: Watched((*path, k), seen, v) if isinstance(v, dict) else v for k, v in content.items()})
        self.path, self.seen = path, seen

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add((*self.path, key))
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.seen.add((*self.path, key))
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.seen.add((*self.path, str(key)))
        return super().__contains__(key)

    def __copy__(self) -> Watched:
        return Watched(self.path, self.seen, dict(self))


def test_every_key_that_the_installed_version_looks_up_is_in_the_table() -> None:
    seen: set[KeyPath] = set()
    sections = ("activation_checkpointing", "aio", "flops_profiler", "autotuning", "data_types", "timers")
    content: dict[str, Any] = {"train_batch_size": 1, **{section: {} for section in sections}}
    content["checkpoint"] = {"writer": {"type": "MOCK"}, "parallel_write": {}}
    content["data_efficiency"] = {
        "data_sampling": {"curriculum_learning": {}, "dynamic_batching": {}},
        "data_routing": {"random_ltd": {}},
    }
    content |= {"optimizer": {}, "scheduler": {}, "torch_autocast": {}}
    ds_config.DeepSpeedConfig(Watched((), seen, content))
    version = installed()
    assert len(seen) > 100
    assert {p for p in seen if not known_at(p, version) and not refused_at(p, version)} == set()


# Defects and changes


def test_defects_and_changes_have_evidence_that_gives_their_versions() -> None:
    assert KNOWN_DEFECTS.keys() | CHANGES.keys() == set(EVIDENCE)
    assert not KNOWN_DEFECTS.keys() & CHANGES.keys()
    for name, defect in KNOWN_DEFECTS.items():
        edges = {edge for e in EVIDENCE[name] for edge in (e.span.since, e.span.until)}
        since, until = defect.span.since, defect.span.until
        assert {since, until} <= edges | {None}, name
        assert not (since and until) or since < until
        assert defect.affects(since or OLDEST)
        assert not until or not defect.affects(until)
    for name, change in CHANGES.items():
        assert change.since in {edge for e in EVIDENCE[name] for edge in (e.span.since, e.span.until)}
        assert not change.at or known_at(path_of(change.at), change.since), name


@pytest.mark.parametrize("id", EVIDENCE)
def test_evidence_holds_in_the_installed_version(id: str) -> None:
    for evidence in EVIDENCE[id]:
        if evidence.file.startswith("deepspeed/"):
            assert evidence.stands_in(ROOT) == (installed() in evidence.span), evidence


# Facts one by one

FACTS = [fact for facts in load_json("releases/test_versions.json").values() for fact in facts]
"""By the place that says so: path, version, known, refused, and the default if there is one."""


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact[0]} {fact[1]}")
def test_fact(fact: list[Any]) -> None:
    name, version, known, refused, *default = fact
    path, release = path_of(name), parse_version(version)
    assert known_at(path, release) is known
    assert refused_at(path, release) is refused
    found = default_at(path, release)
    assert ([] if found is NO_DEFAULT else [found]) == default
    assert type(found) is type((default or [NO_DEFAULT])[0])


def test_facts_beyond_keys_and_defaults() -> None:
    keys = TABLE["keys"]
    bounds = keys["zero_optimization.reduce_bucket_size"]["bounds"]
    assert bounds == [["0.14.0", {"ge": 0}], ["0.19.6", {"gt": 0}]]
    assert keys["zero_optimization.cpu_offload"]["replaced_by"] == "offload_optimizer"
    assert keys["bf16.enabled"]["types"] == [["0.14.0", None], ["0.17.1", "bool"]]
    facts = key_facts(("compile",))
    assert facts is not None
    assert (len(facts.spans), str(facts.since)) == (2, "0.16.6")
    facts = key_facts(("aio", "thread_count"))
    assert facts is not None
    assert (facts.since, str(facts.spans[-1].until)) == (None, "0.16.4")
    assert key_facts(("zero_optimisation",)) is None
    assert "muon" not in optimizers_at(parse_version("0.17.5"))
    assert "muon" in optimizers_at(parse_version("0.17.6"))
    assert "onebitadam" in optimizers_at(parse_version("0.19.6"))
    assert "onebitadam" not in optimizers_at(parse_version("0.19.7"))
    assert known_at(("tensor_parallel", "partition_config", "layer_specs", 0, "patterns"), NEWEST)


@pytest.mark.parametrize(
    ("id", "affected", "sound"),
    [
        ("zero2-accumulation", ["0.17.6", "0.18.2"], ["0.17.5", "0.18.3"]),
        ("zero2-offload-accumulation", ["0.15.2", "0.18.9"], ["0.15.1", "0.19.0"]),
        ("stage0-fp16-unscaled", ["0.18.3", "0.19.8"], ["0.18.2"]),
        ("overlap-buffer-lifetime", ["0.14.0", "0.18.9"], ["0.19.0"]),
        ("zero3-gradient-stream", ["0.18.7"], ["0.18.8"]),
        ("cpu-lion-refused", ["0.17.5"], ["0.17.6"]),
    ],
)
def test_known_bug(id: str, affected: list[str], sound: list[str]) -> None:
    bug = KNOWN_DEFECTS[id]
    assert all(bug.affects(parse_version(version)) for version in affected)
    assert not any(bug.affects(parse_version(version)) for version in sound)


# Versions as people write them


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.16.4", (0, 16, 4)),
        ("v0.16.4", (0, 16, 4)),
        ("0.16.4+cu121", (0, 16, 4)),
        (" 0.16.4 ", (0, 16, 4)),
        ("0.16", (0, 16, 9)),
        ("0.19", (0, 19, 8)),
    ],
)
def test_parse_version(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("0.13.5", "DeepSpeed 0.13.5 is not supported. Give a release from 0.14.0 to 0.19.8"),
        ("0.20", "DeepSpeed 0.20 is not supported. Give a release from 0.14.0 to 0.19.8"),
        ("0.16.10", "there is no DeepSpeed 0.16.10. The last release of 0.16 is 0.16.9"),
        ("newest", "'newest' is no version of DeepSpeed. Give a release from 0.14.0 to 0.19.8"),
        ("0.16.4.1", "'0.16.4.1' is no version of DeepSpeed. Give a release from 0.14.0 to 0.19.8"),
    ],
)
def test_parse_version_says_what_there_is(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_version(text, where="--deepspeed-version")
    assert str(error.value) == f"--deepspeed-version: {line}"


@given(st.one_of(st.text(), st.from_regex(r"\Av?\d{1,3}(\.\d{1,3}){0,4}(\+\w*)?\Z"), st.sampled_from(SUPPORTED)))
def test_any_text_is_a_supported_version_or_one_line(text: str) -> None:
    try:
        version = parse_version(text)
    except ConfigError as error:
        line = str(error)
    else:
        assert version in ALL
        assert str(version) == text or text not in SUPPORTED
        return
    assert "\n" not in line
    assert str(NEWEST) in line or "last release" in line
    assert text not in SUPPORTED


@given(st.lists(st.sampled_from([*"ab", "zero_optimization", "optimizer", "params", 0]), max_size=5))
def test_any_path_has_one_standing(path: list[str | int]) -> None:
    for version in (OLDEST, NEWEST):
        assert not (known_at(tuple(path), version) and refused_at(tuple(path), version))
