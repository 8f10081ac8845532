"""What zerokit resolves, beside what transformers, accelerate and DeepSpeed do with the same config."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from zerokit.documents import Document, dotted, parse_json
from zerokit.errors import ConfigError
from zerokit.hardware.cluster import Cluster, Parallelism
from zerokit.lint.examples import small_decoder
from zerokit.models import ModelShape
from zerokit.resolving.arguments import DEFAULTS, TRAINER_DEFAULTS, Arguments
from zerokit.resolving.run import Run
from zerokit.resolving.trace import Resolution, resolve, resolve_settled

transformers = pytest.importorskip("transformers")
deepspeed = pytest.importorskip("deepspeed")

from accelerate import Accelerator  # noqa: E402
from accelerate.utils import DummyOptim, DummyScheduler  # noqa: E402

from tests.resolving.handing_over import HIDDEN, by_accelerate, by_the_trainer, parsed, without_an_engine  # noqa: E402

pytestmark = pytest.mark.torch

MODEL = replace(small_decoder(), hidden_size_for_trainer=HIDDEN, hidden_size_for_accelerate=HIDDEN)


BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def run_with(arguments: Arguments, num_gpus: int, model: ModelShape | None = None) -> Run:
    """The run that brings such arguments."""
    cluster = Cluster(num_gpus)
    given, where = arguments.given, arguments.where
    return Run(target=arguments.target, cluster=cluster, model=model, given=given, where=where)


@pytest.fixture(scope="module")
def theirs() -> Iterator[None]:
    with without_an_engine():
        yield


SIZES = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")


def _or_auto(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(["auto", *values])


def _section(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


ZERO = st.fixed_dictionaries(
    {"stage": st.sampled_from([0, 1, 2, 3, 3, "auto"])},
    optional={
        **{name: _or_auto(10**6) for name in SIZES},
        "stage3_gather_16bit_weights_on_model_save": _or_auto(True, False),
        "offload_optimizer": _section(device=_or_auto("none", "cpu"), nvme_path=_or_auto("/nvme")),
        "offload_param": _section(device=_or_auto("none", "cpu")),
        "overlap_comm": st.booleans(),
        "cpu_offload": st.booleans(),
    },
)
OPTIMIZER = st.fixed_dictionaries(
    {"type": st.just("AdamW")},
    optional={
        "params": _section(
            lr=_or_auto(5e-5, 1e-4),
            betas=_or_auto([0.9, 0.999], [0.9, 0.95]),
            eps=_or_auto(1e-8),
            weight_decay=_or_auto(0.0, 0.1),
        )
    },
)
SCHEDULER = st.fixed_dictionaries(
    {
        "type": st.just("WarmupDecayLR"),
        "params": st.fixed_dictionaries(
            {"total_num_steps": _or_auto(100, 1000)},
            optional={
                "warmup_min_lr": _or_auto(0.0),
                "warmup_max_lr": _or_auto(5e-5),
                "warmup_num_steps": _or_auto(1, 10),
            },
        ),
    }
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "train_batch_size": _or_auto(8, 16, 32),
        "train_micro_batch_size_per_gpu": _or_auto(1, 2, 8),
        "gradient_accumulation_steps": _or_auto(1, 2, None),
        "gradient_clipping": _or_auto(1.0, 0.5),
        "bf16": _section(enabled=_or_auto(True, False)),
        "fp16": _section(enabled=_or_auto(True, False)),
        "steps_per_print": _or_auto(10),
        "wall_clock_breakdown": st.booleans(),
        "zero_allow_untested_optimizer": st.booleans(),
        "optimizer": OPTIMIZER,
        "scheduler": SCHEDULER,
    },
).flatmap(
    lambda config: st.one_of(
        ZERO.map(lambda zero: {**config, "zero_optimization": zero}),
        ZERO.map(lambda zero: {**config, "zero_optimization": zero}),
        st.just(config),
    )
)
TRAINER = _section(
    per_device_train_batch_size=st.sampled_from([1, 2, 8]),
    gradient_accumulation_steps=st.sampled_from([1, 2]),
    max_grad_norm=st.sampled_from([1.0, 0.5]),
    learning_rate=st.sampled_from([5e-5, 1e-4]),
    adam_beta2=st.sampled_from([0.95, 0.999]),
    weight_decay=st.sampled_from([0.0, 0.1]),
    warmup_steps=st.sampled_from([0, 10, 0.05]),
    bf16=st.booleans(),
    fp16=st.just(False),
    optim=st.just("adamw_torch"),
).map(lambda given: {"max_steps": 100, **given})
SCRIPT = _section(
    gradient_accumulation_steps=st.sampled_from([1, 2, 4]),
    mixed_precision=st.sampled_from(["no", "bf16", "fp16"]),
    lr=st.sampled_from([1e-3, 5e-5]),
    weight_decay=st.sampled_from([0.0, 0.1]),
    warmup_num_steps=st.sampled_from([0, 10]),
    total_num_steps=st.sampled_from([None, 100]),
).map(lambda given: {"batch_size": 2, **given})

MANY = examples(300, suppress_health_check=list(HealthCheck))


def compare(
    config: dict[str, Any],
    arguments: Arguments,
    world_size: int,
    target: Callable[[dict[str, Any], Arguments, int], dict[str, Any]],
) -> None:
    run = run_with(arguments, world_size, model=MODEL)
    ours = resolve(Document(config, "ds.json"), run)
    try:
        handed = target(config, arguments, world_size)["config_params"]
        their = parsed(handed, world_size)
    except (ValueError, AttributeError, AssertionError, TypeError) as error:
        if ours.refused:
            return
        raise AssertionError(f"zerokit would start with {config}") from error
    assert not ours.refused, config
    assert ours.config == handed
    check_values(ours, their)


def check_values(ours: Resolution, their: Any) -> None:
    for name in BATCH_KEYS:
        assert ours[name] == getattr(their, name), name
    assert ours["gradient_clipping"] == their.gradient_clipping
    assert ours["bf16.enabled"] == their.bfloat16_config.enabled
    assert ours["fp16.enabled"] == their.float16_config.enabled
    for value in ours.values:
        if value.path[0] != "zero_optimization" or "leaf_module" in value.path:
            continue
        found: Any = their.zero_config.model_dump(by_alias=True)
        for key in value.path[1:]:
            found = found[key]
        assert value.value == (str(found) if value.path[-1] == "nvme_path" else found), value


@pytest.mark.usefixtures("theirs")
@given(CONFIGS, TRAINER, st.sampled_from([1, 2, 4]))
@MANY
def test_it_is_what_the_trainer_hands_to_deepspeed(
    config: dict[str, Any], given_arguments: dict[str, Any], world_size: int
) -> None:
    compare(config, Arguments("trainer", given_arguments), world_size, by_the_trainer)


@pytest.mark.usefixtures("theirs")
@given(CONFIGS, SCRIPT, st.sampled_from([1, 2, 4]))
@MANY
def test_it_is_what_accelerate_hands_to_deepspeed(
    config: dict[str, Any], given_arguments: dict[str, Any], world_size: int
) -> None:
    compare(config, Arguments("accelerate", given_arguments), world_size, by_accelerate)


@given(CONFIGS, st.sampled_from([1, 2, 4]))
@MANY
def test_it_is_what_deepspeed_alone_makes_of_it(config: dict[str, Any], world_size: int) -> None:
    ours = resolve(Document(config, "ds.json"), run_with(Arguments("deepspeed"), world_size))
    try:
        their = parsed(config, world_size)
    except (AssertionError, ValueError, TypeError) as error:
        if ours.refused:
            return
        raise AssertionError(f"zerokit would start with {config}") from error
    if not ours.refused:  # DeepSpeed fails later on an "auto" that it takes for a value
        check_values(ours, their)


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("parallelism", [Parallelism(sequence=2), Parallelism(sequence=4), Parallelism(tensor=2)])
@pytest.mark.parametrize("target", ["trainer", "accelerate"])
@pytest.mark.parametrize("given_sizes", [{}, {"train_micro_batch_size_per_gpu": 2}, {"train_batch_size": 24}])
def test_groups_change_the_batch_size_as_accelerate_and_deepspeed_change_it(
    parallelism: Parallelism, target: Any, given_sizes: dict[str, int]
) -> None:
    sizes = dict.fromkeys(BATCH_KEYS, "auto") | {"gradient_accumulation_steps": 3} | given_sizes
    config = {**sizes, "zero_optimization": {"stage": 3}}
    batch = {"trainer": "per_device_train_batch_size", "accelerate": "batch_size"}[target]
    arguments = Arguments(target, {batch: 2, "gradient_accumulation_steps": 3, "max_steps": 9})
    if parallelism.tensor > 1:
        config["tensor_parallel"] = {"autotp_size": parallelism.tensor}
    run = replace(run_with(arguments, 4, model=MODEL), parallelism=parallelism)
    ours = resolve(Document(config, "ds.json"), run)
    deliver = {"trainer": by_the_trainer, "accelerate": by_accelerate}[target]
    handed = deliver(config, arguments, 4, parallelism.sequence)["config_params"]
    their = parsed(handed, 4, parallelism.sequence)
    assert ours.refused == ()
    assert [ours[key] for key in BATCH_KEYS] == [getattr(their, key) for key in BATCH_KEYS]
    assert their.train_batch_size == 2 * 3 * 4 / parallelism.sequence


def test_the_defaults_of_arguments_are_transformers_and_accelerates() -> None:
    import inspect
    from dataclasses import fields

    theirs = {field.name: field.default for field in fields(transformers.TrainingArguments)}
    ours = dict(TRAINER_DEFAULTS)
    for name in ("optim", "lr_scheduler_type"):
        default = theirs.pop(name)
        assert str(getattr(default, "value", default)) == ours.pop(name)
    assert ours == {name: theirs[name] for name in ours}
    for maker, names in (
        (DummyOptim, ("lr", "weight_decay")),
        (DummyScheduler, ("total_num_steps", "warmup_num_steps")),
        (Accelerator, ("gradient_accumulation_steps",)),
    ):
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(maker).parameters
        assert {name: DEFAULTS["accelerate"][name] for name in names} == {
            name: parameters[name].default for name in names
        }


def test_infinity_is_what_accelerate_writes() -> None:
    ours = resolve(
        Document({"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}, "ds.json"),
        run_with(Arguments("accelerate", {"batch_size": 1}), 1),
    )
    assert ours["steps_per_print"] == math.inf


def resolved(config: dict[str, Any], target: Any = "trainer", *, world_size: int = 1, **given: Any) -> Resolution:
    config = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}, **config}
    return resolve(Document(config, "ds.json"), run_with(Arguments(target, given), world_size, model=MODEL))


def lost(resolution: Resolution) -> dict[str, str]:
    return {one.name: one.message for one in resolution.lost}


@pytest.mark.parametrize(
    ("config", "arguments", "names"),
    [
        ({}, {"max_grad_norm": 0.3}, {"max_grad_norm"}),
        (
            {},
            {"max_grad_norm": 0.3, "gradient_accumulation_steps": 4},
            {"max_grad_norm", "gradient_accumulation_steps"},
        ),
        ({"gradient_clipping": "auto"}, {"max_grad_norm": 0.3}, set()),
        ({}, {"learning_rate": 1e-4, "warmup_steps": 5, "optim": "adafactor"}, set()),
        ({"optimizer": {"type": "AdamW"}}, {"optim": "adafactor", "learning_rate": 1e-4}, {"optim", "learning_rate"}),
        (
            {"scheduler": {"type": "WarmupLR", "params": {}}},
            {"lr_scheduler_type": "cosine", "warmup_steps": 5, "learning_rate": 1e-4},
            {"lr_scheduler_type", "warmup_steps"},
        ),
        ({"steps_per_print": 10}, {}, {"steps_per_print"}),
        ({"zero_allow_untested_optimizer": False}, {}, {"zero_allow_untested_optimizer"}),
        ({"zero_optimization": {"stage": 2, "sub_group_size": 1}}, {}, {"zero_optimization.sub_group_size"}),
    ],
)
def test_what_the_trainer_loses_is_named(config: dict[str, Any], arguments: dict[str, Any], names: set[str]) -> None:
    assert set(lost(resolved(config, **arguments))) == names


def test_what_accelerate_loses_is_named() -> None:
    config = {"gradient_accumulation_steps": 2, "bf16": {"enabled": False}}
    told = {"gradient_accumulation_steps": 4, "mixed_precision": "bf16", "batch_size": 8}
    assert set(lost(resolved(config, "accelerate", **told))) == {"gradient_accumulation_steps", "mixed_precision"}


def test_deepspeed_drops_auto() -> None:
    resolution = resolved({"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": "auto"}}, "deepspeed")
    assert set(lost(resolution)) == {"bf16.enabled", "zero_optimization.stage"}
    assert (resolution["bf16.enabled"], resolution["zero_optimization.stage"]) == (False, 0)
    assert resolution.refused == ()
    assert resolved({"gradient_clipping": "auto"}, "deepspeed").refused


def test_each_value_says_where_it_comes_from() -> None:
    text = """{
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_clipping": 0.5,
  "bfloat16": {"enabled": false},
  "zero_optimization": {"stage": 3, "cpu_offload": true, "reduce_bucket_size": "auto"}
}"""
    document = parse_json(text, "ds.json")
    arguments = Arguments("trainer", {"per_device_train_batch_size": 4, "max_grad_norm": 0.5}, "recipe:{}".format)
    resolution = resolve(document, run_with(arguments, 2, model=MODEL))
    found = {dotted(value.path): value for value in resolution.values}
    expected = {
        "train_micro_batch_size_per_gpu": (4, "auto", 2),
        "gradient_clipping": (0.5, "file", 3),
        "train_batch_size": (8, "computed", None),
        "zero_optimization.stage": (3, "file", 5),
        "zero_optimization.offload_optimizer.device": ("cpu", "file", 5),
        "zero_optimization.reduce_bucket_size": (HIDDEN**2, "auto", 5),
        "zero_optimization.sub_group_size": (10**9, "default", None),
        "zero_optimization.overlap_comm": (True, "default", None),
        "steps_per_print": (math.inf, "added", None),
    }
    for name, (value, origin, line) in expected.items():
        one = found[name]
        assert (one.value, one.origin, one.line) == (value, origin, line), name
    assert found["train_micro_batch_size_per_gpu"].detail == "recipe:per_device_train_batch_size"
    assert "cpu_offload" in found["zero_optimization.offload_optimizer.device"].detail


def test_what_depends_on_what_is_not_known_stays_open() -> None:
    scheduler = {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": "auto"}}
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
        "scheduler": scheduler,
    }
    run = run_with(Arguments("trainer", {"warmup_steps": 0.1}), 1)
    resolution = resolve(Document(config, "ds.json"), run)
    unknown = {dotted(value.path) for value in resolution.values if not value.known}
    assert unknown == {
        "zero_optimization.reduce_bucket_size",
        "scheduler.params.total_num_steps",
        "scheduler.params.warmup_num_steps",
    }
    assert resolution.refused == ()


def test_a_model_whose_hidden_size_accelerate_does_not_find_is_refused() -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
    run = run_with(Arguments("accelerate"), 1, model=replace(MODEL, hidden_size_for_accelerate=None))
    (reason,) = resolve(Document(config, "ds.json"), run).refused
    assert "finds no hidden size" in reason.message


@pytest.mark.parametrize(
    ("config", "ranks", "message"),
    [
        ({"train_batch_size": 20}, 2, "train_batch_size 20 is not train_micro_batch_size_per_gpu 8"),
        ({"sequence_parallel_size": 3}, 4, "4 ranks do not divide into sequences of 3"),
    ],
)
def test_batch_sizes_that_cannot_be_are_refused(config: dict[str, Any], ranks: int, message: str) -> None:
    assert any(message in one.message for one in resolved(config, "deepspeed", world_size=ranks).refused)


def test_a_recipe_settles_what_the_trainer_would_lose() -> None:
    document = Document({"zero_optimization": {"stage": 2}}, "ds.json")
    training = {"max_grad_norm": 0.3, "per_device_train_batch_size": 2}
    resolution = resolve_settled(document, Run(cluster=Cluster(4), given=training, where="recipe.yaml ({})".format))
    assert resolution["gradient_clipping"] == 0.3
    assert resolution["train_batch_size"] == 8
    assert resolution["bf16.enabled"] is True
    assert resolution.lost == ()
    assert resolution.refused == ()
    found = {dotted(value.path): value.detail for value in resolution.values}
    assert found["gradient_clipping"].startswith("recipe.yaml (max_grad_norm)")
    assert "zerokit train" in found["gradient_clipping"]
    with pytest.raises(ConfigError, match=r"gradient_clipping 1\.0, TrainingArguments 0\.3 \(max_grad_norm\)"):
        resolve_settled(Document({"gradient_clipping": 1.0}, "ds.json"), Run(cluster=Cluster(1), given=training))


@pytest.mark.parametrize(("parallel", "theirs"), [(Parallelism(sequence=2), 4), (Parallelism(tensor=2), 8)])
def test_the_batch_of_a_recipe_counts_groups(parallel: Parallelism, theirs: int) -> None:
    batch = 8 // parallel.group_size
    document = Document({"train_batch_size": batch, "zero_optimization": {"stage": 3}}, "ds.json")
    run = Run(cluster=Cluster(8), parallelism=parallel, given={"per_device_train_batch_size": 1})
    resolution = resolve_settled(document, run)
    assert resolution.refused == ()
    assert (resolution["train_batch_size"], resolution["gradient_accumulation_steps"]) == (theirs, 1)
    assert resolution["tensor_parallel.autotp_size"] == (parallel.tensor if parallel.tensor > 1 else 0)
    with pytest.raises(ConfigError, match=f"train_batch_size is {batch + 1}, but 1 per GPU x 1"):
        resolve_settled(Document({**document.data, "train_batch_size": batch + 1}, "ds.json"), run)
