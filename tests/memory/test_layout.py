from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from peft.utils import constants
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from tests.memory.runs import LLAMA, run
from zerokit.errors import ZerokitError
from zerokit.memory import Ia3, LearnedTokens, Lora
from zerokit.memory.adapters import Modules
from zerokit.memory.layout import layout_of
from zerokit.models import load_model_shape
from zerokit.training.peft.keys import config_class

pytestmark = pytest.mark.torch

MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": True,
}
GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 100, "n_embd": 32, "n_head": 4, "n_layer": 3}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "vocab_size": 100,
    "hidden_size": 32,
    "ffn_dim": 64,
    "word_embed_proj_dim": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
T5: dict[str, Any] = {
    "model_type": "t5",
    "vocab_size": 100,
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 8,
    "num_layers": 3,
    "num_heads": 4,
}
STABLELM: dict[str, Any] = {
    "model_type": "stablelm",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "qk_layernorm": True,
}


def _model(config: dict[str, Any]) -> Any:
    keys = dict(config)
    kind = AutoModelForSeq2SeqLM if config is T5 else AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(AutoConfig.for_model(keys.pop("model_type"), **keys))


@pytest.mark.parametrize("config", [LLAMA, GPT2, STABLELM], ids=lambda config: config["model_type"])
def test_parameters_come_in_the_models_own_order(config: dict[str, Any]) -> None:
    layout = layout_of(run(model=load_model_shape(config)))
    assert [one.elements for one in layout.parameters] == [one.numel() for one in _model(config).parameters()]


def test_modules_of_a_mixture_own_what_they_own_in_the_model() -> None:
    layout = layout_of(run(model=load_model_shape(MOE)))
    theirs = [(name.removesuffix(".weight"), one.numel()) for name, one in _model(MOE).named_parameters()]
    theirs = [(name.rpartition(".")[0] if ".experts." in name else name, size) for name, size in theirs]
    assert [(one.module, one.elements) for one in layout.parameters] == theirs


_PATTERN, _FEEDFORWARD = r".*\.layers\.[02]\..*(k|v|down)_proj", r".*down_proj"


@pytest.mark.parametrize(
    ("config", "targets", "feedforward"),
    [
        (LLAMA, ("q_proj", "down_proj"), ("down_proj",)),
        (LLAMA, ("k_proj", "v_proj", "down_proj"), ("down_proj",)),
        (LLAMA, "all-linear", ("down_proj",)),
        (LLAMA, _PATTERN, _FEEDFORWARD),
        (GPT2, ("c_attn", "mlp.c_proj"), ("mlp.c_proj",)),
        (GPT2, ("c_attn", "c_fc"), ("c_fc",)),
        (T5, ("k", "v", "wo"), ("wo",)),
        *((config, None, None) for config in (LLAMA, QWEN2, OPT, GPT2, T5)),
    ],
)
def test_adapters_are_pefts(config: dict[str, Any], targets: Modules | None, feedforward: Any) -> None:
    names = list(targets) if isinstance(targets, tuple) else targets
    _check_adapter(config, LoraConfig(r=4, target_modules=names), Lora(4, targets))
    _check_adapter(config, LoraConfig(r=4, target_modules=names, use_dora=True), Lora(4, targets, dora=True))
    of_peft = list(feedforward) if isinstance(feedforward, tuple) else feedforward
    theirs = IA3Config(target_modules=names, feedforward_modules=of_peft)
    _check_adapter(config, theirs, Ia3(targets, feedforward))


def _check_adapter(config: dict[str, Any], theirs: Any, ours: Lora | Ia3) -> None:
    adapted = get_peft_model(_model(config), theirs)
    layout = layout_of(run(model=load_model_shape(config), **{type(ours).__name__.lower(): ours}))
    expected = [(one.numel(), one.requires_grad) for one in adapted.parameters()]
    assert [(one.elements, one.trainable) for one in layout.parameters] == expected


def test_modules_of_a_type_are_pefts() -> None:
    lora = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    ia3 = constants.TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING
    feedforward = constants.TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING
    types = sorted({*lora, *ia3, *feedforward, "a type of its own"})
    assert {one: Lora(4).of(one).target_modules for one in types} == _modules(lora, types, "all-linear")
    assert {one: Ia3().of(one).target_modules for one in types} == _modules(ia3, types, "all-linear")
    assert {one: Ia3().of(one).feedforward_modules for one in types} == _modules(feedforward, types, ())


def _modules(known: Any, types: list[str], of_others: Modules) -> dict[str, Modules]:
    found = {one: known.get(one, of_others) for one in types}
    return {one: names if isinstance(names, str) else tuple(names) for one, names in found.items()}


def test_frozen_modules_are_not_trained() -> None:
    layout = layout_of(run(frozen_modules=("model.embed_tokens", "model.layers.0.")))
    frozen = {one.module.split(".self_attn")[0] for one in layout.parameters if not one.trainable}
    assert "model.embed_tokens" in frozen
    assert all(name.startswith(("model.embed_tokens", "model.layers.0")) for name in frozen)
    assert layout.num_frozen + layout.num_trainable == layout.num_parameters


@pytest.mark.parametrize("names", [("model.embed_tokens", "layers"), ("",)])
def test_frozen_modules_are_the_models(names: tuple[str, ...]) -> None:
    with pytest.raises(ZerokitError, match=f"--freeze: no parameter's name begins with '{names[-1]}'"):
        layout_of(run(frozen_modules=names))


@pytest.mark.parametrize("config", [LLAMA, GPT2, T5], ids=lambda config: config["model_type"])
@pytest.mark.parametrize("method", ["p_tuning", "prefix_tuning", "prompt_tuning"])
def test_learned_tokens_are_as_many_parameters_as_peft_makes(method: Any, config: dict[str, Any]) -> None:
    task = "SEQ_2_SEQ_LM" if config is T5 else "CAUSAL_LM"
    adapted = get_peft_model(_model(config), config_class(method)(task_type=task, num_virtual_tokens=7))
    shape = load_model_shape(config)
    layout = layout_of(run(model=shape, learned_tokens=LearnedTokens.of(method, 7, shape)))
    assert layout.num_trainable == adapted.get_nb_trainable_parameters()[0]
    assert layout.num_parameters == adapted.get_nb_trainable_parameters()[1]
