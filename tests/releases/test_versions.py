"""The table of DeepSpeed's releases: against the installed one, against its evidence, and fact by fact."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import processes
from tests.each import each
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

from deepspeed.comm.config import CommsLoggerConfig  # noqa: E402
from deepspeed.compile.config import CompileConfig  # noqa: E402
from deepspeed.inference.config import WeightQuantConfig  # noqa: E402
from deepspeed.monitor import config as monitor_config  # noqa: E402
from deepspeed.runtime import config as ds_config  # noqa: E402
from deepspeed.runtime import constants, lr_schedules, precision_config  # noqa: E402
from deepspeed.runtime.activation_checkpointing.config import ACT_CHKPT_DEFAULT  # noqa: E402
from deepspeed.runtime.swap_tensor.aio_config import AIO_DEFAULT_DICT  # noqa: E402
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig  # noqa: E402
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig  # noqa: E402
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig  # noqa: E402

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


def test_the_table_is_read_only_when_a_fact_is_asked_for() -> None:
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
    assert {
        path_of(name) for name in TABLE["refused"] if refused_at(path_of(name), version)
    } == surface.refused
    for path in surface.strict:
        assert refused_at((*path, "no such key"), version)
    names = read_names(ROOT)
    assert optimizers_at(version) == set(names["optimizers"])
    assert schedulers_at(version) == set(names["schedulers"])


MODELS: list[tuple[str, Any]] = [
    ("zero_optimization", DeepSpeedZeroConfig),
    ("fp16", precision_config.DeepSpeedFP16Config),
    ("bf16", precision_config.DeepSpeedBF16Config),
    ("hybrid_engine", ds_config.HybridEngineConfig),
    ("compile", CompileConfig),
    ("tensor_parallel", TPTrainingConfig),
    ("comms_logger", CommsLoggerConfig),
    ("weight_quantization", WeightQuantConfig),
    ("timers.throughput", DeepSpeedThroughputTimerConfig),
    ("tensorboard", monitor_config.TensorBoardConfig),
    ("wandb", monitor_config.WandbConfig),
    ("csv_monitor", monitor_config.CSVConfig),
    ("comet", monitor_config.CometConfig),
]


def fields(section: KeyPath, model: Any) -> Iterator[tuple[KeyPath, KeyPath, Any]]:
    """Path under the first and under the second name, and default, of a pydantic model's fields."""
    for name, field in model.model_fields.items():
        path = (*section, field.alias or name)
        default = field.get_default(call_default_factory=True)
        yield path, (*section, name), default.value if isinstance(default, Enum) else default
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if hasattr(inner, "model_fields"):
                yield from fields(path, inner)


@pytest.mark.parametrize(("section", "model"), MODELS, ids=[name for name, _ in MODELS])
def test_the_installed_models_have_the_keys_names_and_defaults_of_the_table(section: str, model: Any) -> None:
    version, expected = installed(), set()
    for path, second, default in fields(path_of(section), model):
        expected.add(".".join(map(str, path)))
        assert known_at(path, version), path
        assert known_at(second, version), second
        facts, stated = key_facts(second), default_at(path, version)
        assert facts is not None
        assert facts.path == path
        if isinstance(default, bool | int | float | str | list | type(None)):
            assert stated == default or (default is None and stated is NO_DEFAULT), path
    inside = [name for name in TABLE["keys"] if name.startswith(f"{section}.")]
    assert {name for name in inside if known_at(path_of(name), version)} == expected


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
        super().__init__(
            {k: Watched((*path, k), seen, v) if isinstance(v, dict) else v for k, v in content.items()}
        )
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


# Facts one by one, each with the place that says so

FACTS = [
    # path, version, known, refused, default
    ("zero_optimization.stage", "0.14.0", True, False, 0),
    # zenflow/zenflow_config.py came with 0.17.5 (#7391); the section above refuses what it does not know
    ("zero_optimization.zenflow.topk_ratio", "0.17.4", False, True, NO_DEFAULT),
    ("zero_optimization.zenflow.topk_ratio", "0.17.5", True, False, 0.1),
    # runtime/swap_tensor/constants.py: AIO_THREAD_COUNT became AIO_INTRA_OP_PARALLELISM (#7056)
    ("aio.thread_count", "0.16.3", True, False, 1),
    ("aio.thread_count", "0.16.4", False, False, NO_DEFAULT),
    ("aio.intra_op_parallelism", "0.16.4", True, False, 1),
    # runtime/constants.py: GRADIENT_CLIPPING_DEFAULT (#8068)
    ("gradient_clipping", "0.19.2", True, False, 0.0),
    ("gradient_clipping", "0.19.3", True, False, 1.0),
    # runtime/zero/offload_config.py: pin_memory (#8207)
    ("zero_optimization.offload_optimizer.pin_memory", "0.19.4", True, False, False),
    ("zero_optimization.offload_param.pin_memory", "0.19.5", True, False, True),
    # runtime/constants.py: STEPS_PER_PRINT_DEFAULT (#6602)
    ("steps_per_print", "0.15.1", True, False, 10),
    ("steps_per_print", "0.15.2", True, False, None),
    # runtime/constants.py: BFLOAT16_IMMEDIATE_GRAD_UPDATE_DEFAULT, then runtime/precision_config.py
    ("bf16.immediate_grad_update", "0.16.4", True, False, False),
    ("bfloat16.immediate_grad_update", "0.16.5", True, False, True),
    ("bf16.immediate_grad_update", "0.17.1", True, False, False),
    # runtime/precision_config.py: check_grad_overflow (#6976, #8035); fp16 and bf16 became pydantic models
    ("bf16.check_grad_overflow", "0.17.0", False, False, NO_DEFAULT),
    ("bf16.check_grad_overflow", "0.19.2", True, False, False),
    ("bf16.check_grad_overflow", "0.19.3", True, False, True),
    ("fp16.opt_level", "0.17.0", False, False, NO_DEFAULT),
    ("fp16.opt_level", "0.17.1", False, True, NO_DEFAULT),
    # runtime/compiler.py lost its CompileConfig (#5581); compile/config.py brought another (#7154)
    ("compile.backend", "0.14.3", True, False, "inductor"),
    ("compile.backend", "0.14.4", False, False, NO_DEFAULT),
    ("compile.deepcompile", "0.16.5", False, False, NO_DEFAULT),
    ("compile.deepcompile", "0.16.6", True, False, False),
    ("compile.backend", "0.16.6", False, True, NO_DEFAULT),
    # runtime/config.py: _REMOVED_TOP_LEVEL_CONFIG_KEYS
    ("nebula", "0.19.6", True, False, NO_DEFAULT),
    ("nebula.enabled", "0.19.7", False, True, NO_DEFAULT),
    ("amp.enabled", "0.19.7", True, False, NO_DEFAULT),
    ("amp", "0.19.8", False, True, NO_DEFAULT),
    ("eigenvalue", "0.19.7", False, False, NO_DEFAULT),
    ("eigenvalue", "0.19.8", False, True, NO_DEFAULT),
    ("zero_optimization.mics_shard_size", "0.19.6", True, False, -1),
    ("zero_optimization.mics_shard_size", "0.19.7", False, True, NO_DEFAULT),
    ("zero_optimization.zeropp_loco_param", "0.16.1", False, True, NO_DEFAULT),
    ("zero_optimization.zeropp_loco_param", "0.16.2", True, False, None),
    # runtime/constants.py: the name was mended (#7175)
    ("seq_parallel_communication_data_type", "0.16.4", False, False, NO_DEFAULT),
    ("seq_parallel_communication_data_type", "0.16.5", True, False, "fp32"),
    # runtime/zero/config.py: the name without the prefix is the field's own
    ("zero_optimization.prefetch_bucket_size", "0.14.0", True, False, 50_000_000),
    ("zero_optimization.stage3_module_granularity_threshold", "0.15.4", False, True, NO_DEFAULT),
    ("zero_optimization.stage3_module_granularity_threshold", "0.16.0", True, False, 0),
    # runtime/engine.py: the keys of Muon's halves
    ("optimizer.params.muon_lr", "0.18.2", False, False, NO_DEFAULT),
    ("optimizer.params.muon_lr", "0.18.3", True, False, NO_DEFAULT),
    ("optimizer.params.lr", "0.14.0", True, False, NO_DEFAULT),
    # never a key of DeepSpeed's
    ("zero_optimisation.stage", "0.19.8", False, False, NO_DEFAULT),
    ("zero_optimization.stagee", "0.14.0", False, True, NO_DEFAULT),
]


@pytest.mark.parametrize(("name", "version", "known", "refused", "default"), FACTS)
def test_fact(name: str, version: str, known: bool, refused: bool, default: Any) -> None:
    release = parse_version(version)
    assert known_at(path_of(name), release) is known
    assert refused_at(path_of(name), release) is refused
    found = default_at(path_of(name), release)
    assert found is default if default is NO_DEFAULT else (found == default and type(found) is type(default))


def test_facts_beyond_keys_and_defaults() -> None:
    keys = TABLE["keys"]
    bounds = keys["zero_optimization.reduce_bucket_size"]["bounds"]
    assert bounds == [
        ["0.14.0", {"ge": 0}],
        ["0.19.6", {"gt": 0}],
    ]
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


@given(
    st.one_of(st.text(), st.from_regex(r"\Av?\d{1,3}(\.\d{1,3}){0,4}(\+\w*)?\Z"), st.sampled_from(SUPPORTED))
)
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
