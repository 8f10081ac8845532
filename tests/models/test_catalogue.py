"""The catalogue: names, published sizes, and every entry against transformers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.combinations import REST
from tests.json_data import load_json
from tests.models.transformers_models import build, parameters_of_model, parameters_of_shape
from zerokit.models import architectures, catalogue, load, load_model_shape
from zerokit.models.on_meta import count_on_meta

pytestmark = pytest.mark.torch

PUBLISHED: dict[str, int] = load_json("models/published_sizes.json")
"""Parameters as their makers, the Hub's safetensors headers or papers give them, tied ones once."""

ACTIVE = {"mixtral-8x7b": 12_879_925_248, "qwen3-30b-a3b": 3_353_032_704, "olmoe": 1_282_017_280}


def test_it_is_large_enough() -> None:
    assert len(catalogue.entries()) >= 60


def test_its_names_are_unambiguous() -> None:
    ids = Counter(one.lower() for entry in catalogue.entries() for one in (entry.id, *entry.also))
    assert max(ids.values()) == 1
    for entry in catalogue.entries():
        for name in (entry.id, *entry.also, *entry.short_names):
            assert catalogue.find(name) is entry, name


FIRST = {entry.config["model_type"]: entry for entry in reversed(catalogue.entries())}
ENTRIES = [
    pytest.param(entry, id=entry.id, marks=() if entry in FIRST.values() else REST) for entry in catalogue.entries()
]
"""One of each type is always built."""


def test_published_sizes() -> None:
    found = {name: load_model_shape(name, allow_network=False, allow_torch=False).num_parameters for name in PUBLISHED}
    assert found == PUBLISHED


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_against_transformers(entry: catalogue.Entry) -> None:
    shape = load_model_shape(entry.id, allow_network=False, allow_torch=False)
    model = build(entry.config, shape.architecture)
    assert parameters_of_shape(shape, model) == parameters_of_model(model)
    if entry.config["model_type"] not in architectures.model_types():
        stored = catalogue.stored_shape(entry.id)
        built = count_on_meta(entry.config, load.dotted_place, name=entry.id)
        assert stored == replace(built, counted_by="zerokit"), "run python -m tools.model_shapes"


def test_every_published_size_is_of_an_entry() -> None:
    assert set(PUBLISHED) <= {entry.id for entry in catalogue.entries()}


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters(name: str) -> None:
    """12.9 billion of Mixtral's 46.7, 3.3 of Qwen3's 30.5, 1.3 of OLMoE's 6.9."""
    shape = load_model_shape(name)
    assert shape.is_moe
    assert shape.num_active_parameters == ACTIVE[name]


@pytest.mark.parametrize(
    ("name", "hub_id"),
    [
        ("llama-3.1-70b", "meta-llama/Llama-3.1-70B"),
        ("Llama_3.1_70B", "meta-llama/Llama-3.1-70B"),
        ("LLAMA 3.1 70B", "meta-llama/Llama-3.1-70B"),
        ("llama3.1-70b", "meta-llama/Llama-3.1-70B"),
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("Meta-Llama-3-8B-Instruct", "meta-llama/Meta-Llama-3-8B"),
        ("meta-llama/llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B"),
        ("gpt2", "openai-community/gpt2"),
        ("opt-1.3b", "facebook/opt-1.3b"),
        ("opt-13b", "facebook/opt-13b"),
        ("deepseek-r1", "deepseek-ai/DeepSeek-V3"),
        ("bert-base", "google-bert/bert-base-uncased"),
        ("mistral-7b", "mistralai/Mistral-7B-v0.1"),
    ],
)
def test_names_are_met_leniently(name: str, hub_id: str) -> None:
    assert load_model_shape(name, allow_network=False).name == hub_id


@pytest.mark.parametrize("name", ["opt-1", "llama", "someone/llama-3.1-70b", "gpt2/gpt2", ""])
def test_other_names_are_not(name: str) -> None:
    """Another owner's model of the same name may be another model."""
    assert catalogue.find(name) is None


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("llama-3.1-71b", "llama-3.1-70b"),
        ("meta-llama/Lama-3.1-70B", "meta-llama/Llama-3.1-70B"),
        ("quen3-8b", "qwen3-8b"),
        ("xxxxxxxxxxxx", None),
    ],
)
def test_a_near_name_is_offered(name: str, close: str | None) -> None:
    assert catalogue.closest(name) == close


def test_what_else_the_configs_say() -> None:
    assert load_model_shape("llama-2-7b").dtype == "float16"
    assert load_model_shape("gemma-3-4b").dtype == "bfloat16"
    assert load_model_shape("gpt2").dtype is None
    assert load_model_shape("deepseek-v3").quantization == "fp8"
    assert load_model_shape("gpt-oss-20b").quantization == "mxfp4"
    assert load_model_shape("llama-3.1-8b").quantization is None
    assert load_model_shape("llama-3.1-8b").max_position_embeddings == 131_072


def test_flan_t5_tells_of_its_own_output_matrix() -> None:
    """247,577,856 parameters in its checkpoint, of which transformers 5 ties 24,674,304 when it builds."""
    shape = load_model_shape("google/flan-t5-base")
    assert shape.num_parameters == 247_577_856 - 24_674_304
    assert "24,674,304" in shape.notes[0]
    assert not load_model_shape("t5-base").notes
