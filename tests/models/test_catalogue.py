"""The catalogue: names, published sizes, and every entry against transformers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.models.transformers_models import build, parameters_of_model, parameters_of_shape
from zerokit.models import catalogue, load, load_model_shape, registry
from zerokit.models.on_meta import count_on_meta

pytestmark = pytest.mark.torch

PUBLISHED = {
    "huggyllama/llama-7b": 6_738_415_616,
    "huggyllama/llama-13b": 13_015_864_320,
    "huggyllama/llama-30b": 32_528_943_616,
    "huggyllama/llama-65b": 65_285_660_672,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "codellama/CodeLlama-7b-hf": 6_738_546_688,
    "codellama/CodeLlama-34b-hf": 33_743_970_304,
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "01-ai/Yi-34B": 34_388_917_248,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mistral-Nemo-Base-2407": 12_247_782_400,
    "mistralai/Mistral-Small-24B-Base-2501": 23_572_403_200,
    "mistralai/Mistral-Large-Instruct-2407": 122_610_069_504,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "google/gemma-2b": 2_506_172_416,
    "google/gemma-7b": 8_537_680_896,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-270m": 268_098_176,
    "google/gemma-3-1b-pt": 999_885_952,
    "google/gemma-3-4b-pt": 4_300_079_472,
    "google/gemma-3-12b-pt": 12_187_325_040,
    "google/gemma-3-27b-pt": 27_432_406_640,
    "microsoft/phi-2": 2_779_683_840,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "microsoft/Phi-3-medium-4k-instruct": 13_960_238_080,
    "microsoft/phi-4": 14_659_507_200,
    "microsoft/Phi-4-mini-instruct": 3_836_021_760,
    "microsoft/Phi-3.5-MoE-instruct": 41_873_153_344,
    "openai-community/gpt2": 124_439_808,
    "openai-community/gpt2-medium": 354_823_168,
    "openai-community/gpt2-large": 774_030_080,
    "openai-community/gpt2-xl": 1_557_611_200,
    "EleutherAI/gpt-j-6b": 6_050_882_784,
    "EleutherAI/gpt-neox-20b": 20_554_567_680,
    "EleutherAI/pythia-70m": 70_426_624,
    "EleutherAI/pythia-160m": 162_322_944,
    "EleutherAI/pythia-410m": 405_334_016,
    "EleutherAI/pythia-1b": 1_011_781_632,
    "EleutherAI/pythia-1.4b": 1_414_647_808,
    "EleutherAI/pythia-2.8b": 2_775_208_960,
    "EleutherAI/pythia-6.9b": 6_857_302_016,
    "EleutherAI/pythia-12b": 11_846_072_320,
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-350m": 331_196_416,
    "facebook/opt-1.3b": 1_315_758_080,
    "facebook/opt-6.7b": 6_658_473_984,
    "facebook/opt-13b": 12_853_473_280,
    "bigscience/bloom-560m": 559_214_592,
    "bigscience/bloom-1b1": 1_065_314_304,
    "bigscience/bloom-7b1": 7_069_016_064,
    "bigscience/bloom": 176_247_271_424,
    "tiiuae/falcon-7b": 6_921_720_704,
    "mosaicml/mpt-7b": 6_649_286_656,
    "stabilityai/stablelm-3b-4e1t": 2_795_443_200,
    "stabilityai/stablelm-2-1_6b": 1_644_515_328,
    "CohereLabs/c4ai-command-r-v01": 34_980_831_232,
    "CohereLabs/c4ai-command-r-plus": 103_810_674_688,
    "deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    "deepseek-ai/DeepSeek-V2": 235_741_434_880,
    "deepseek-ai/DeepSeek-V3": 671_026_404_352,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "allenai/OLMo-7B-hf": 6_888_095_744,
    "allenai/OLMo-2-1124-7B": 7_298_617_344,
    "allenai/OLMoE-1B-7B-0924": 6_919_161_856,
    "bigcode/starcoder2-3b": 3_030_371_328,
    "bigcode/starcoder2-7b": 7_173_923_840,
    "google-bert/bert-base-uncased": 109_514_298,
    "google-bert/bert-large-uncased": 335_174_458,
    "FacebookAI/roberta-base": 124_697_433,
    "FacebookAI/roberta-large": 355_412_057,
    "distilbert/distilbert-base-uncased": 66_985_530,
    "google-t5/t5-small": 60_506_624,
    "google-t5/t5-base": 222_903_552,
    "google-t5/t5-large": 737_668_096,
    "google-t5/t5-3b": 2_851_598_336,
    "facebook/bart-large": 406_291_456,
    "google/vit-base-patch16-224": 86_567_656,
    "google/vit-large-patch16-224": 304_326_632,
}
"""Parameters as their makers, the Hub's safetensors headers or papers give them, tied ones once."""

ACTIVE = {
    "mixtral-8x7b": 12_879_925_248,
    "qwen3-30b-a3b": 3_353_032_704,
    "olmoe": 1_282_017_280,
}


def test_it_is_large_enough() -> None:
    assert len(catalogue.entries()) >= 60


def test_its_names_are_unambiguous() -> None:
    ids = Counter(one.lower() for entry in catalogue.entries() for one in (entry.id, *entry.also))
    assert max(ids.values()) == 1
    for entry in catalogue.entries():
        for name in (entry.id, *entry.also, *entry.short_names):
            assert catalogue.find(name) is entry, name


@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.id)
def test_every_entry_against_transformers(entry: catalogue.Entry) -> None:
    shape = load_model_shape(entry.id, allow_network=False, allow_torch=False)
    model = build(entry.config, shape.architecture)
    assert parameters_of_shape(shape, model) == parameters_of_model(model)
    if entry.config["model_type"] not in registry.model_types():
        stored = catalogue.stored_shape(entry.id)
        built = count_on_meta(entry.config, load.dotted_place, name=entry.id)
        assert stored == replace(built, counted_by="zerokit"), "run python -m tools.model_shapes"
    if entry.id in PUBLISHED:
        assert shape.num_parameters == PUBLISHED[entry.id]


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
