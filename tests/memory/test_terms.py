"""Every term: its category and certainty, and its formula in letters and in numbers, which make its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

import pytest

import zerokit.memory
from tests.each import each
from tests.memory.runs import ds_config, run, shape
from zerokit.choices import Attention
from zerokit.config.conditions import ConfigView, bf16_optimizer
from zerokit.config.dtypes import FP32_NAMES
from zerokit.estimation.explain import letters_of
from zerokit.memory import Certainty, Estimate, Generation, Ia3, Lora, Term, TermKind, estimate
from zerokit.memory.gpu import replay_fullest
from zerokit.memory.layout import layout_of
from zerokit.memory.settings import settings_of
from zerokit.memory.term import TERM_KINDS
from zerokit.models import ModelShape, catalogue, load_model_shape
from zerokit.reporting.categories import CATEGORIES

MEMORY = Path(zerokit.memory.__file__).parent
CPU, PAGEABLE = {"device": "cpu"}, {"device": "cpu", "pin_memory": False}
NVME = {"device": "nvme", "nvme_path": "/nvme"}
FP32_GRADIENTS = {"data_types": {"grad_accum_dtype": "fp32"}}


def _families() -> list[ModelShape]:
    """The smallest of each model type of the catalogue."""
    smallest: dict[str, ModelShape] = {}
    for known in catalogue.entries():
        found = load_model_shape(known.id)
        best = smallest.get(found.model_type)
        if best is None or found.num_parameters < best.num_parameters:
            smallest[found.model_type] = found
    return list(smallest.values())


def _settings() -> Iterator[dict[str, Any]]:
    """Every stage with each precision and offload, and what else makes terms of its own."""
    for stage in range(4):
        yield from ({"stage": stage, "precision": precision} for precision in ("bf16", "fp16", "fp32"))
        yield {"stage": stage, "gradient_checkpointing": True, "gradient_accumulation_steps": 3}
        yield {"stage": stage, "config": ds_config(stage, **FP32_GRADIENTS)}
        yield {"stage": stage, "config": ds_config(stage, communication_data_type="fp32")}
        yield {"stage": stage, "optimizer": "adagrad", "attention": "eager"}
        yield {"stage": stage, "lora": Lora(8, dora=True), "load_in_4bit": stage == 2}
        yield {"stage": stage, "lora": Lora(8, dora=True, dropout=True)}
        yield {"stage": stage, "ia3": Ia3(), "gradient_checkpointing": True}
        yield {"stage": stage, "optimizer": "adamw", "lora": Lora(8), "generation": Generation(2, 512)}
        yield {"stage": stage, "chunked_loss": "liger", "world_size": 3}
        yield {"stage": stage, "chunked_loss": "zerokit", "seq_len": 8192, "world_size": 3}
    for stage, pin in ((1, CPU), (2, CPU), (2, PAGEABLE), (3, CPU), (3, PAGEABLE), (3, NVME)):
        yield {"stage": stage, "zero": {"offload_optimizer": pin}, "gradient_accumulation_steps": 2}
        yield {"stage": stage, "zero": {"offload_optimizer": pin}, "precision": "fp16", "optimizer": "adamw"}
    for device in (CPU, PAGEABLE, {**NVME, "max_in_cpu": 1000}):
        yield {"stage": 3, "zero": {"offload_param": device, "offload_optimizer": CPU}}
        yield {"stage": 3, "zero": {"offload_param": device, "offload_optimizer": NVME}, "precision": "fp32"}
    yield {"stage": 2, "zero": {"overlap_comm": True}}
    yield {"stage": 3, "zero": {"sub_group_size": 1_000_000, "stage3_max_reuse_distance": 0}}


FAMILIES = _families()
SETTINGS = list(_settings())


def _evaluate(formula: str, letters: dict[str, int]) -> int:
    """``(2e + 1)·a·s`` and ``4·32 MiB`` as numbers.

    Raises:
        KeyError, SyntaxError: it has words in it.
    """
    text = formula.replace(",", "").replace("KiB", "·1024").replace("MiB", "·1048576").replace("·", "*")
    text = re.sub(r"(?<=[\w)]) (?=[*])", "", text)
    text = re.sub(r"(?<=\d)(?=[^\W\d_])", "*", text)
    named = re.sub(r"[^\W\d_]+(?:_[^\W\d_]+)*[ₜ]?", lambda match: f"({letters[match.group(0)]})", text)
    return int(eval(named, {"__builtins__": {}}))


def _check(one: Estimate) -> None:
    letters = {name: letter.number for name, letter in letters_of(one).items()}
    for term in one.terms:
        assert _evaluate(term.numbers, {}) == term.bytes > 0, term.name
        assert term.category in CATEGORIES
        assert term.category != "other" or term.name == "cuBLAS workspaces", term.name
        assert term.certainty in get_args(Certainty)
        assert term.certainty != "exact" or "gathered" not in term.name, term.name
        assert term.source
        if term.unit and not term.count.endswith("power of two"):
            assert list(term.amounts) == [_evaluate(term.unit, letters)], (term.name, term.formula)
        if term.device in ("gpu", "pageable"):
            _check_count(term, letters, adapters=letters["Φₜ"] if one.run.adapter is not None else 0)


def _check_count(term: Term, letters: dict[str, int], *, adapters: int) -> None:
    """A count in letters alone is what is counted, but for the padding of partitions.

    Adapters come to a model that has been built.
    """
    try:
        count = _evaluate(term.count, letters)
    except (KeyError, SyntaxError):
        return
    assert abs(sum(term.amounts.values()) - count) <= 2 * letters["N"] + adapters, (term.name, term.formula)


@pytest.mark.slow
@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: model.model_type)
def test_formulas_of_every_family_make_the_bytes(model: ModelShape) -> None:
    for stage in range(4):
        _check(estimate(run(stage, model=model, world_size=8, seq_len=128, precision="bf16")))


@each(SETTINGS, by=lambda settings: f"stage {settings['stage']}")
def test_formulas_of_every_setting_make_the_bytes(settings: dict[str, Any]) -> None:
    keys = dict(settings)
    stage = keys.pop("stage")
    tied = shape(tie_word_embeddings=True, hidden_size=2048, num_attention_heads=16)
    for model in (tied, 123_456_789):
        options = {} if isinstance(model, int) and keys.keys() & {"lora", "ia3", "generation"} else keys
        _check(estimate(run(stage, model=model, **options)))


@pytest.mark.slow
@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: model.model_type)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_letters_of_saved_tensors_make_their_bytes(model: ModelShape, attention: Any) -> None:
    training = run(2, model=model, attention=attention, lora=None, seq_len=128)
    calls = replay_fullest(training, layout_of(training), settings_of(training)).model_calls
    if calls is None:
        assert not estimate(training).activations_counted
        return
    letters = {name: letter.number for name, letter in letters_of(estimate(training)).items()}
    saved = [part for block in calls.blocks for call in block.calls for part in call.all_saved]
    assert saved
    assert [(part.symbols, part.bytes) for part in saved] == [
        (part.symbols, _evaluate(part.symbols, letters)) for part in saved
    ]


def test_a_bucket_is_of_the_type_that_gradients_are_reduced_in() -> None:
    config = ds_config(3, communication_data_type="fp32", zero={"reduce_bucket_size": 500_000_000})
    terms = estimate(run(3, config=config)).terms_of("gpu", "always")
    bucket = next(term for term in terms if term.name == "reduce bucket")
    assert bucket.formula == "c·reduce_bucket_size = 4·500,000,000"
    assert bucket.bytes == 2_000_000_000


def test_weights_that_autograd_keeps_are_buffers_and_modelled() -> None:
    moe = load_model_shape("Qwen/Qwen1.5-MoE-A2.7B")
    terms = estimate(run(3, model=moe, world_size=8)).device.terms_at_peak
    kept = next(term for term in terms if term.name == "gathered parameters that autograd keeps")
    assert kept.bytes > 20 * 2**30
    assert (kept.category, kept.certainty) == ("buffers", "modelled")


def test_what_a_kind_must_say_has_no_default() -> None:
    required = {field.name for field in fields(TermKind) if field.default is MISSING}
    assert required == {"name", "category", "count", "source", "certainty"}


@pytest.mark.parametrize("offload", [{}, {"cpu_offload": True}, {"offload_optimizer": CPU}])
@pytest.mark.parametrize("gradients", ["bf16", *FP32_NAMES])
@pytest.mark.parametrize("stage", [1, 2])
def test_the_bf16_optimizer_is_counted_where_deepspeed_takes_it(
    stage: int, gradients: str, offload: dict[str, Any]
) -> None:
    config = ds_config(stage, zero=offload, data_types={"grad_accum_dtype": gradients})
    settings = settings_of(run(config=config))
    taken = stage == 1 and gradients != "bf16" and not offload
    assert bf16_optimizer(ConfigView(config)) is taken
    assert (settings.wrapper == "bf16") is taken
    assert settings.accumulation_bytes == (2 if gradients == "bf16" else 4)


def test_documents_of_a_packed_sequence_are_kept_apart_by_a_mask_but_for_flash_attention() -> None:
    """Of the types of activations, s for each token; with one, torch wants keys and values for all heads."""
    grown = {
        attention: peak_of(True, attention) - peak_of(False, attention) for attention in ("sdpa", "flash_attention_2")
    }
    layers, batch, seq, q, kv = 4, 2, 1024, 512, 256
    assert grown == {"sdpa": layers * batch * seq * (2 * seq + 2 * 2 * (q - kv)), "flash_attention_2": 0}


def peak_of(packing: bool, attention: Attention) -> int:
    return estimate(run(attention=attention, micro_batch_size=2, packing=packing)).device.peak_bytes


def test_files_name_all_of_their_rows_and_no_others() -> None:
    named = {
        f"{file.stem}.{name}"
        for file in MEMORY.glob("*.py")
        if file.stem != "term"  # whose docstring has an example
        for name in re.findall(r"\bKINDS\.([A-Z]\w*)", file.read_text(encoding="utf-8"))
    }
    others = {name for name in TERM_KINDS if name.startswith("optimizers.")}  # named by optimizers.json
    assert named == TERM_KINDS.keys() - others
