"""The table of who fills what, beside transformers and accelerate themselves."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.resolving.test_trace import HIDDEN, MODEL, by_accelerate, by_the_trainer, run_with
from tests.resolving.test_trace import theirs as theirs
from zerokit.choices import Target
from zerokit.config.key_index import sections
from zerokit.documents import Document
from zerokit.resolving.arguments import DEFAULTS, Arguments
from zerokit.resolving.auto_word import DEEPSPEEDS_OWN_WORD
from zerokit.resolving.contradictions import resolve_for_trainer
from zerokit.resolving.filled_keys import FILLED, FILLED_BY, REPLACED_ARGUMENTS, SIZE_RULES
from zerokit.resolving.trace import resolve

pytestmark = pytest.mark.torch

pytestmark = pytest.mark.torch
integration = pytest.importorskip("transformers.integrations.deepspeed")

GIVEN: dict[Target, dict[str, Any]] = {
    "trainer": {"max_steps": 100},
    "accelerate": {"batch_size": 2, "total_num_steps": 100},
}
PLAIN: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {}},
    "scheduler": {"type": "WarmupDecayLR", "params": {}},
    "zero_optimization": {"stage": 3},
}


def keys() -> Iterator[str]:
    """Every key of the models outside of lists, and of the sections that are free."""
    for path, section in sections().items():
        if all(isinstance(key, str) for key in path):
            yield from (".".join([*map(str, path), name]) for name in section.model_fields)
    yield from (name for name in FILLED if "params" in name)


def set_auto(name: str) -> dict[str, Any]:
    config = copy.deepcopy(PLAIN)
    *parents, key = name.split(".")
    node = config
    for parent in parents:
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            pytest.skip("no section")
    node[key] = "auto"
    return config


KEYS = sorted({name for name in keys() if name.split(".")[0] not in ("optimizer", "scheduler")} | set(FILLED))
SECTIONS = {".".join(map(str, path)) for path in sections()}


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("target", ["trainer", "accelerate"])
def test_exactly_the_keys_of_the_table_are_filled(target: Target) -> None:
    ask = by_the_trainer if target == "trainer" else by_accelerate
    filled, refused = set(), {}
    for name in KEYS:
        if name in SECTIONS:
            continue
        try:
            handed = ask(set_auto(name), Arguments(target, GIVEN[target]), 2)
        except ValueError as error:
            refused[name] = str(error)
            continue
        except TypeError:  # accelerate compares it with a number before it looks for the word
            assert name == "tensor_parallel.autotp_size"
            continue
        assert "auto" not in str(handed), name
        filled.add(name)
    assert filled == set(FILLED_BY[target])
    assert {name for name, message in refused.items() if name not in message} == set()
    assert not filled & DEEPSPEEDS_OWN_WORD


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("target", ["trainer", "accelerate"])
@pytest.mark.parametrize("name", FILLED)
def test_each_is_filled_with_what_the_table_says(target: Target, name: str) -> None:
    if name not in FILLED_BY[target]:
        return
    ask = by_the_trainer if target == "trainer" else by_accelerate
    node: Any = ask(set_auto(name), Arguments(target, GIVEN[target]), 2)["config_params"]
    for key in name.split("."):
        node = node[key]
    source = FILLED[name].source(target)
    assert source is not None
    run = run_with(Arguments(target, GIVEN[target]), 2, model=MODEL)
    wanted = 16 if (name, target) == ("train_batch_size", "accelerate") else source.value(run)
    assert node == wanted


@pytest.mark.parametrize("name", FILLED)
def test_another_value_is_refused_where_the_table_says_so(name: str) -> None:
    config = set_auto(name)
    node = config
    *parents, key = name.split(".")
    for parent in parents:
        node = node[parent]
    node[key] = [0.5, 0.6] if key == "betas" else 77
    arguments = Arguments("trainer", GIVEN["trainer"])
    theirs = integration.HfTrainerDeepSpeedConfig(copy.deepcopy(config))
    values = {argument: arguments[argument] for argument in DEFAULTS["trainer"]}
    args = SimpleNamespace(**values, world_size=2, save_on_each_node=False, get_warmup_steps=lambda steps: 1)
    theirs.trainer_config_process(args)
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=HIDDEN))
    try:
        theirs.trainer_config_finalize(args, model, 100)
    except ValueError:
        assert FILLED[name].other == "refused"
        assert any(f"ds {name}=" in line for line in theirs.mismatches)
    else:
        assert FILLED[name].other != "refused"
        assert theirs.mismatches == []


def test_every_argument_of_the_table_has_a_default_and_every_default_a_key() -> None:
    for target in ("trainer", "accelerate"):
        used = set()
        for filled in FILLED.values():
            source = filled.trainer if target == "trainer" else filled.accelerate
            used |= set(source.arguments) if source is not None else set()
        replaced = set(REPLACED_ARGUMENTS.values()) if target == "trainer" else set()
        assert used | replaced == set(DEFAULTS[target]), target


def test_the_sizes_are_the_formulas_that_they_name() -> None:
    for key, rule in SIZE_RULES.items():
        factor, _, hidden = rule.formula.rpartition(" ")
        size = float(factor or 1) * (HIDDEN * HIDDEN if hidden == "hidden²" else HIDDEN)
        assert rule.elements(HIDDEN) == int(size), key


def test_a_warmup_that_the_trainer_takes_for_the_same_is_no_contradiction() -> None:
    """The Trainer compares `max(1, get_warmup_steps(steps))`."""
    scheduler = {"type": "WarmupLR", "params": {"warmup_num_steps": 1}}
    for training, steps in (({"warmup_steps": 0}, 1), ({"warmup_steps": 0.25, "max_steps": 40}, 10)):
        scheduler["params"] = {"warmup_num_steps": steps}
        config = {"train_micro_batch_size_per_gpu": 8, "scheduler": scheduler, "zero_optimization": {}}
        settled = resolve_for_trainer(config, training, default_precision="fp32", world_size=1)
        assert settled.training["warmup_steps"] == training["warmup_steps"]
        run = run_with(Arguments("trainer", settled.training), 1, model=MODEL)
        assert resolve(Document(settled.ds_config, "ds.json"), run).refused == ()
