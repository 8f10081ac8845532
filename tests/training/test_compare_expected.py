"""What a run takes beside what was expected of it, and what its MFU counts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from peft import LoraConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.training.test_records import REPORT
from zerokit.training.run import _print_summary
from zerokit.training.throughput import operations_per_token, peak_flops
from zerokit.units import GIB

H, F, V, LAYERS = 8, 16, 32, 2
SIZES = {
    "hidden_size": H,
    "intermediate_size": F,
    "vocab_size": V,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
ATTENTION, MLP, HEAD = 4 * H * H, 3 * H * F, V * H


@pytest.mark.parametrize("tied", [False, True])
def test_operations_are_those_of_products(tied: bool) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied))
    assert operations_per_token(model) == 6 * (LAYERS * (ATTENTION + MLP) + HEAD)


def test_frozen_parameters_have_no_gradient_product() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    lora = LAYERS * 2 * 2 * H
    assert operations_per_token(adapted) == 4 * (LAYERS * (ATTENTION + MLP) + HEAD) + 6 * lora


def test_a_token_meets_some_experts() -> None:
    model = MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2))
    assert operations_per_token(model) == 6 * (LAYERS * (ATTENTION + 2 * MLP + 4 * H) + HEAD)


def test_an_encoder_has_heads_of_its_own() -> None:
    sizes = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
    model = BertForMaskedLM(BertConfig(**sizes, max_position_embeddings=8))
    assert operations_per_token(model) == 6 * (LAYERS * (ATTENTION + 2 * H * F) + H * H + HEAD)
    t5 = T5Config(vocab_size=V, d_model=H, d_kv=4, d_ff=F, num_layers=1, num_heads=2)
    assert operations_per_token(T5ForConditionalGeneration(t5)) is None


def test_cards_are_known_by_the_names_that_torch_has() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3", "bf16", None) == pytest.approx(989e12, rel=0.01)
    single = peak_flops("NVIDIA A100-SXM4-80GB", "fp32", None)
    assert (single, peak_flops("NVIDIA A100-SXM4-80GB", "fp32", "high")) == (19.5e12, 156e12)
    assert peak_flops("Radeon", "bf16", None) is None


def test_the_summary_says_what_was_saved_and_when_nothing_was_left_to_train(
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = SimpleNamespace(output_dir="runs/first")
    for report, is_said in ((REPORT, False), (replace(REPORT, train_loss=None), True)):
        _print_summary(report, where, 6)  # type: ignore[arg-type]
        said = capsys.readouterr().err
        assert ("nothing was left to train" in said) == is_said
        assert said.endswith("\nsaved the model in runs/first (6 files)\n")


def test_the_estimate_stands_beside_the_measured_peak(capsys: pytest.CaptureFixture[str]) -> None:
    on_gpu = replace(REPORT, device="cuda", peak_memory_bytes=3 * GIB, expected_peak_bytes=2 * GIB)
    _print_summary(on_gpu, SimpleNamespace(output_dir="runs/first"), 6)  # type: ignore[arg-type]
    assert "peak 3.00 GiB per rank, estimated 2.00 GiB\n" in capsys.readouterr().err
