"""The recipe's peft section."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from zerokit.checkpoint.pretrained import load_weights, read_config
from zerokit.errors import RecipeError, ZerokitError
from zerokit.recipe import load_recipe
from zerokit.training.peft import add_adapter, check_peft_keys
from zerokit.training.tasks.sequence_classification import SequenceClassification

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def words(**keys: str) -> list[str]:
    return [f"--peft.{key}={value}" for key, value in keys.items()]


def add(model: PreTrainedModel, *, checkpointing: bool = False, **keys: str) -> PreTrainedModel:
    args: Any = SimpleNamespace(gradient_checkpointing=checkpointing)
    return add_adapter(copy.deepcopy(model), load_recipe(None, words(**keys)), args, "CAUSAL_LM")


def test_without_the_section_all_parameters_are_trained(model: PreTrainedModel) -> None:
    assert check_peft_keys(load_recipe()) is None
    assert all(p.requires_grad for p in add(model).parameters())


def test_the_keys_are_those_of_lora_config() -> None:
    assert check_peft_keys(load_recipe(None, words(type="lora", r="4", target_modules="[q_proj]"))) == {
        "r": 4,
        "target_modules": ["q_proj"],
    }


def test_only_the_adapter_is_trained(model: PreTrainedModel) -> None:
    adapted = add(model, r="4", target_modules="[q_proj]")
    trained = {name: p.numel() for name, p in adapted.named_parameters() if p.requires_grad}
    assert all("lora_" in name and "q_proj" in name for name in trained)
    assert sum(trained.values()) == 2 * (64 * 4 + 4 * 64)


def test_gradients_reach_the_adapter_through_checkpointed_blocks(model: PreTrainedModel) -> None:
    import torch

    adapted = add(model, checkpointing=True, r="4", target_modules="[q_proj]")
    # A checkpointed block gives gradients only where one of its inputs needs one.
    assert adapted.get_input_embeddings()(torch.tensor([[5, 6]])).requires_grad
    plain = add(model, r="4", target_modules="[q_proj]")
    assert not plain.get_input_embeddings()(torch.tensor([[5, 6]])).requires_grad


@pytest.mark.parametrize(
    ("keys", "where", "message"),
    [
        ({"type": "lroa"}, "--peft.type", "unknown type 'lroa'. Did you mean 'lora'?"),
        ({"type": "5"}, "--peft.type", "unknown type '5'"),
        ({"lora_alfa": "8"}, "--peft.lora_alfa", "is not a LoraConfig key. Did you mean 'lora_alpha'?"),
    ],
)
def test_wrong_keys_are_named_with_the_nearest(keys: dict[str, str], where: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        check_peft_keys(load_recipe(None, words(**keys)))
    assert caught.value.where == where
    assert message in str(caught.value)


@pytest.mark.parametrize("keys", [{"r": "0"}, {"target_modules": "[nothing]"}, {"bias": "some"}, {"r": "a"}])
def test_what_peft_refuses_is_a_recipe_error(keys: dict[str, str], model: PreTrainedModel) -> None:
    with pytest.raises(RecipeError) as caught:
        add(model, **keys)
    assert "LoRA: " in caught.value.message
    assert "\n" not in str(caught.value)


def test_without_peft_installed_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ZerokitError, match=r"\(peft\): needs the peft packages .* 'zerokit\[peft\]'"):
        check_peft_keys(load_recipe(None, words(r="4")))


def test_a_new_head_of_several_layers_is_saved_so_that_peft_loads_it(tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import RobertaConfig, RobertaForMaskedLM

    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 8)
    RobertaForMaskedLM(
        RobertaConfig(num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=16, **sizes)
    ).save_pretrained(tmp_path / "base")
    kind = SequenceClassification.model
    config = read_config(tmp_path / "base", where="model", kind=kind, num_labels=3)

    def loaded() -> PreTrainedModel:
        return load_weights(tmp_path / "base", config, where="model", kind=kind, dtype=torch.float32)

    model = loaded()
    args: Any = SimpleNamespace(gradient_checkpointing=False)
    adapted = add_adapter(model, load_recipe(None, words(r="2")), args, "SEQ_CLS").eval()
    adapted.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(loaded(), str(tmp_path / "adapter")).eval()
    ids = torch.tensor([[2, 5, 3]])
    assert torch.equal(again(input_ids=ids).logits, adapted(input_ids=ids).logits)
