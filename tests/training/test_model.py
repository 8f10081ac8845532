"""A model's config, checked before any rank builds it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml
from deepspeed.utils import z3_leaf_module
from peft import LoraConfig, get_peft_model
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from tests.tiny import tiny_llama, tiny_tokenizer
from zerokit.checkpoint.pretrained import leave_loaded_modules, read_config
from zerokit.errors import ConfigError, ModelError, RecipeError, ZerokitError
from zerokit.recipe import LoadedRecipe, load_recipe
from zerokit.recipe.model import TaskSection
from zerokit.training.model import (
    _check_heads,
    build_model,
    call_same_modules,
    check_checkpointing,
    check_sizes,
    find_checkpoint,
    prepare_model,
    switch_dropout_off,
)
from zerokit.training.tasks.causal_lm import CausalLM
from zerokit.training.tasks.masked_lm import MaskedLM
from zerokit.training.tasks.sequence_classification import SequenceClassification

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CAUSAL = CausalLM(TaskSection())

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def recipe(folder: Path, from_config: Any, *overrides: str) -> LoadedRecipe:
    file = folder / "recipe.yaml"
    sections = {
        "model": {"from_config": from_config, "tokenizer": "x"},
        "data": {"train": "x.jsonl"},
        "task": {"seq_len": 64},
    }
    file.write_text(yaml.safe_dump(sections))
    return load_recipe(file, overrides)


def error_of(loaded: LoadedRecipe, tokenizer: PreTrainedTokenizerBase) -> ZerokitError:
    with pytest.raises(ZerokitError) as caught:
        prepare_model(loaded, None, tokenizer, CAUSAL)
    assert "\n" not in str(caught.value)
    assert caught.value.where
    return caught.value


def test_a_model_from_scratch_takes_what_it_was_not_told_from_the_tokenizer(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    config = prepare_model(recipe(tmp_path, LLAMA), None, tokenizer, CAUSAL).config
    assert config.vocab_size == len(tokenizer)
    assert (config.eos_token_id, config.pad_token_id, config.bos_token_id) == (0, 1, None)


def test_a_model_from_scratch_computes(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    loaded = recipe(tmp_path, LLAMA, "--model.attn_implementation", "eager")
    prepared = prepare_model(loaded, None, tokenizer, CAUSAL)
    model = build_model(prepared, loaded.recipe.model, torch.float32)
    assert model.config._attn_implementation == "eager"
    assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, len(tokenizer))


def test_a_model_that_cannot_compute_activations_again_is_refused(tmp_path: Path) -> None:
    task = MaskedLM(TaskSection(type="masked_lm"))
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        loaded = recipe(tmp_path, LLAMA, f"--training.{name}", "true")
        check_checkpointing({name: True}, loaded, CONFIG_MAPPING["bert"](), task)
        albert = CONFIG_MAPPING["albert"]()
        check_checkpointing({name: False}, loaded, albert, task)
        says = f"--training.{name}: AlbertForMaskedLM cannot compute activations again. Set training.{name} to"
        with pytest.raises(RecipeError, match=says):
            check_checkpointing({name: True}, loaded, albert, task)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "lama"}, "'lama' is not a causal language model of transformers. Did you mean 'llama'?"),
        ({"model_type": "vit"}, "'vit' is not a causal language model of transformers"),
        ({"model_type": None}, "has no 'model_type'"),
        ({"hidden_siz": 64}, "'hidden_siz' is not a key of a llama config. Did you mean 'hidden_size'?"),
        ({"hidden_size": 62}, "not a multiple of the number of attention heads"),
        ({"num_key_value_heads": 3}, "num_attention_heads (4) is not a multiple of num_key_value_heads (3)"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_attention_heads": 0}, "no llama can be made from it"),
        ({"hidden_size": "abc"}, "'hidden_size' expected int"),
        ({"hidden_act": "foo"}, "no llama can be made from it: KeyError: 'foo'"),
        ({"vocab_size": 100}, "the model has 100 embeddings, the tokenizer"),
        ({"max_position_embeddings": 32}, "sequences of 64 tokens, but the model has 32 positions"),
    ],
)
def test_a_config_that_no_model_can_be_made_from_is_refused(
    changes: dict[str, Any], message: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    loaded = recipe(tmp_path, {**LLAMA, **changes})
    assert message in str(error_of(loaded, tokenizer))


def test_errors_name_the_line_of_the_key_or_the_option(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    loaded = recipe(tmp_path, {**LLAMA, "hidden_siz": 1})
    assert str(error_of(loaded, tokenizer).where).endswith("(model.from_config.hidden_siz)")
    error = error_of(recipe(tmp_path, LLAMA, "--task.seq_len", "65"), tokenizer)
    assert isinstance(error, RecipeError)
    assert error.where == "--task.seq_len"
    assert error.hint == "Set task.seq_len to at most 64"


def test_other_names_of_a_key_are_known(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "n_head": 4}
    config = prepare_model(recipe(tmp_path, {"model_type": "gpt2", **sizes}), None, tokenizer, CAUSAL).config
    assert (config.n_embd, config.n_layer) == (64, 2)


@pytest.mark.parametrize("named", ["config.json", "."])
def test_a_config_json_may_carry_keys_of_other_versions(
    named: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, "from_another_version": 1, "vocab_size": 400}))
    loaded = recipe(tmp_path, str(tmp_path / named))
    assert prepare_model(loaded, None, tokenizer, CAUSAL).config.vocab_size == 400


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_a_config_json_that_cannot_be_used_is_named(
    content: str | None, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    error = error_of(recipe(tmp_path, str(file)), tokenizer)
    assert isinstance(error, ModelError)
    assert "config.json" in error.message


def test_no_architecture_is_refused_for_its_own_default_heads() -> None:
    for model_type in {config.model_type for config in MODEL_FOR_CAUSAL_LM_MAPPING} - {"gemma4_assistant"}:
        _check_heads(CONFIG_MAPPING[model_type]().get_text_config(decoder=True))


def test_a_checkpoint_is_found_and_its_weights_are_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tokenizer = tiny_tokenizer(folder)
    original = tiny_llama(folder)
    file = tmp_path / "recipe.yaml"
    file.write_text(f"model: {folder}\ndata: {{train: x.jsonl}}\ntask: {{seq_len: 64}}\n")
    loaded = load_recipe(file)
    found = find_checkpoint(loaded.recipe.model, where="w")
    assert found == folder
    model = build_model(prepare_model(loaded, found, tokenizer, CAUSAL), loaded.recipe.model, torch.bfloat16)
    assert model.dtype == torch.bfloat16
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, original.state_dict()[name].bfloat16())


def test_a_checkpoint_that_is_no_language_model_is_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    loaded = load_recipe(None, ["--model", str(tmp_path)])
    with pytest.raises(ModelError, match="'vit' is not a causal language model"):
        prepare_model(loaded, tmp_path, tokenizer, CAUSAL)


@pytest.mark.parametrize(
    ("model_type", "longest"), [("bert", 64), ("roberta", 62), ("mpnet", 62), ("ibert", 62), ("esm", 62)]
)
def test_a_sequence_may_be_as_long_as_there_are_positions(
    model_type: str, longest: int, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    task = MaskedLM(TaskSection(type="masked_lm"))
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    keys = {"model_type": model_type, **sizes, "max_position_embeddings": 64, "pad_token_id": 1}
    for seq_len in (longest, longest + 1):
        loaded = recipe(tmp_path, keys, "--task.type", "masked_lm", "--task.seq_len", str(seq_len))
        is_refused = pytest.raises(RecipeError, match=f"but the model has {longest} positions")
        with is_refused if seq_len > longest else nullcontext():
            config = prepare_model(loaded, None, tokenizer, task).config
        is_out_of_range = pytest.raises((IndexError, RuntimeError)) if seq_len > longest else nullcontext()
        with is_out_of_range:
            AutoModelForMaskedLM.from_config(config)(input_ids=torch.full((1, seq_len), 5))


def test_a_head_for_another_number_of_classes_is_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = CONFIG_MAPPING["bert"](**sizes, vocab_size=320, num_labels=3)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    words = ["--model", str(tmp_path), "--task.type", "sequence_classification", "--task.seq_len", "16"]
    loaded = load_recipe(None, words)
    task = SequenceClassification(loaded.recipe.task, labels=("bad", "good"))
    with pytest.raises(ModelError, match="has a head for 3 classes, and there are 2"):
        prepare_model(loaded, tmp_path, tokenizer, task)


@pytest.mark.parametrize(
    ("model_type", "rates"),
    [
        ("gpt2", {"embd_pdrop": 0.5}),
        ("opt", {"dropout": 0.5, "layerdrop": 0.5, "ffn_dim": 64, "word_embed_proj_dim": 32}),
        ("llama", {"attention_dropout": 0.5, "intermediate_size": 64}),
    ],
)
def test_without_dropout_training_computes_what_evaluation_does(model_type: str, rates: dict[str, Any]) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
    config = CONFIG_MAPPING[model_type](**sizes, **rates, bos_token_id=0, eos_token_id=0)
    lora = LoraConfig(target_modules="all-linear", lora_dropout=0.5, init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_config(config), lora)
    given, asked = torch.arange(16)[None], model.config.to_dict()
    expected = model.eval()(input_ids=given).logits
    assert not torch.equal(model.train()(input_ids=given).logits, expected)
    switch_dropout_off(model)
    assert torch.equal(model.train()(input_ids=given).logits, expected)
    assert model.config.to_dict() == asked


def test_sizes_that_no_hidden_size_tells_are_refused(tmp_path: Path) -> None:
    loaded = recipe(tmp_path, LLAMA)
    two = CONFIG_MAPPING["t5gemma"]()
    with pytest.raises(ConfigError, match=r"no hidden size in the config of t5gemma.*'reduce_bucket_size'"):
        check_sizes({"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}, loaded, two)
    check_sizes({"zero_optimization": {"stage": 2, "reduce_bucket_size": 100}}, loaded, two)
    one = CONFIG_MAPPING["llama"](**{name: value for name, value in LLAMA.items() if name != "model_type"})
    check_sizes({"zero_optimization": {"reduce_bucket_size": "auto"}}, loaded, one)


def test_modules_of_which_all_is_loaded_are_left_alone_under_zero_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their parameters are in parts there: a module that reads their sizes fails."""
    keys = {"d_model": 16, "vocab_size": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16}
    model = AutoModelForSeq2SeqLM.from_config(CONFIG_MAPPING["pegasus"](**keys, decoder_ffn_dim=16))
    model.register_buffer("table", torch.zeros(1), persistent=False)
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensor._is_hf_initialized = True
        if isinstance(tensor, torch.nn.Parameter) and "embed_positions" in name:
            tensor.data = tensor.data[:0].flatten()
    for module in model.modules():
        module._is_hf_initialized = False
    leave_loaded_modules()
    with pytest.raises(ValueError, match="unpack"):
        model.initialize_weights()
    monkeypatch.setattr("transformers.integrations.deepspeed.is_deepspeed_zero3_enabled", lambda: True)
    model.initialize_weights()
    assert model._is_hf_initialized, "its buffer that no checkpoint has is not made"


def test_all_ranks_call_the_same_modules() -> None:
    layers = dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    experts = {"num_experts": 2, "encoder_sparse_step": 1, "decoder_sparse_step": 1}
    widths = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16)
    config = CONFIG_MAPPING["nllb-moe"](**layers, **experts, **widths, vocab_size=32)
    model = AutoModelForSeq2SeqLM.from_config(config)
    said: list[str] = []
    call_same_modules(model, 3, "deepspeed", said.append)
    assert (model.model.encoder.layerdrop, model.model.decoder.layerdrop) == (0, 0)
    assert model.config.encoder_layerdrop == 0.05, "what is saved with the model"
    assert len(said) == 1
    assert "layerdrop" in said[0]
    leaves = [name for name, module in model.named_modules() if z3_leaf_module(module)]
    assert leaves == [f"model.{part}.layers.0.ffn.experts" for part in ("encoder", "decoder")]
    with pytest.raises(ConfigError, match="NllbMoeExperts calls experts one by one"):
        call_same_modules(model, 2, "deepspeed", None)
    call_same_modules(model, 0, "deepspeed", said.append)
    call_same_modules(get_peft_model(model, LoraConfig(target_modules=["q_proj"])), 2, "deepspeed", None)
    llama = AutoModelForCausalLM.from_config(CONFIG_MAPPING["llama"](**LLAMA))
    call_same_modules(llama, 2, "deepspeed", said.append)
    assert len(said) == 1


def test_a_classifier_is_none_that_writes_text(tmp_path: Path) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="is a LlamaForSequenceClassification, not a causal language model"):
        read_config(tmp_path, where="--model")
    assert read_config(tmp_path, where="--model", kind=SequenceClassification.model).model_type == "llama"
    for wrong in ([5], [None], 5, {"a": 1}):
        (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": wrong}))
        with pytest.raises(ModelError, match=r"config\.json: "):
            read_config(tmp_path, where="--model")
