"""MLPs in tiles of tokens, and inputs of checkpointed layers in host memory: the same gradients, less memory."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from deepspeed.utils import z3_leaf_module
from peft import LoraConfig, get_peft_model
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from zerokit.errors import RecipeError
from zerokit.models import load_model_shape
from zerokit.recipe import load_recipe
from zerokit.training.long_sequences import offload_checkpointed_inputs, tile_mlps
from zerokit.training.model import mlps_to_tile
from zerokit.training.sequence_parallel import _attend_to_documents

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SIZES = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {"head_dim": 8},
    "gpt2": {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0},
    "t5": {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
        "pad_token_id": 1,
    },
}


def made(kind: str, *, lora: bool = False) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, "use_cache": False, **KINDS[kind]})
    auto: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model: Any = auto.from_config(config).train()
    if lora:
        targets = ["q_proj", "gate_proj", "down_proj"]
        model = get_peft_model(model, LoraConfig(target_modules=targets, task_type="CAUSAL_LM", lora_dropout=0.0))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        model.enable_input_require_grads()
    made_: PreTrainedModel = model
    return made_


def paths_of(model: Any) -> tuple[str, ...]:
    return load_model_shape(model.config.to_dict(), allow_network=False).mlp_modules


def backward(model: Any, times: int = 2) -> list[float]:
    """Losses; gradients of all passes add up."""
    ids = torch.randint(0, 320, (2, 61), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "labels": ids}
    losses = [model(**inputs).loss for _ in range(times)]
    for loss in losses:
        loss.backward()
    return [loss.item() for loss in losses]


@pytest.mark.parametrize("reentrant", [None, False, True], ids=["stored", "recomputed", "reentrant"])
@pytest.mark.parametrize(
    ("kind", "lora", "mlps"), [("llama", False, 2), ("llama", True, 2), ("gemma2", False, 2), ("gpt2", False, 2)]
)
def test_tiles_give_the_gradients_of_the_whole(kind: str, lora: bool, mlps: int, reentrant: bool | None) -> None:
    usual = made(kind, lora=lora)
    tiled = copy.deepcopy(usual)
    assert tile_mlps(tiled, paths_of(usual)) == mlps
    for model in (usual, tiled):
        if reentrant is not None:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
    torch.testing.assert_close(backward(tiled), backward(usual), rtol=0, atol=1e-6)
    for (name, one), other in zip(usual.named_parameters(), tiled.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None) == (lora and "lora" not in name), name
        if one.grad is not None:
            torch.testing.assert_close(other.grad, one.grad, rtol=0, atol=1e-6)


def test_an_encoder_and_a_decoder_both_run_in_tiles_that_zero_3_gathers_as_a_whole() -> None:
    usual = made("t5")
    tiled = copy.deepcopy(usual)
    assert tile_mlps(tiled, paths_of(usual)) == 4
    assert sum(z3_leaf_module(module) for module in tiled.modules()) == 4
    torch.testing.assert_close(backward(tiled), backward(usual), rtol=0, atol=1e-6)


def test_dropout_in_a_tile_is_the_same_in_both_passes() -> None:
    """Without it the gradient would be that of other masks than the loss."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4))

    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([Layer()])})
    mlp: Any = model["layers"][0].mlp  # type: ignore[index]
    hidden = torch.randn(1, 10, 4)
    torch.manual_seed(1)
    expected = torch.cat([mlp(tile) for tile in hidden.split(4, dim=1)], dim=1)
    expected.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in mlp.parameters()]
    mlp.zero_grad()
    tile_mlps(model, ("model.layers.*.mlp",))
    torch.manual_seed(1)
    found = mlp(hidden)
    torch.rand(7)  # what others draw between the passes
    found.square().sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close([parameter.grad for parameter in mlp.parameters()], gradients)


@pytest.mark.parametrize(
    ("kind", "keys", "why"),
    [
        ("mixtral", {"num_local_experts": 4}, "MixtralForCausalLM has mixture-of-experts layers"),
        ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 32}, "has no module that is the MLP of a layer"),
        ("llama", {}, "does not go with training.torch_compile"),
    ],
)
def test_what_has_no_mlp_to_tile_is_refused(kind: str, keys: dict[str, Any], why: str) -> None:
    config = AutoConfig.for_model(kind, **{**SIZES, **keys})
    config.architectures = [f"{kind.title() if kind != 'opt' else 'OPT'}ForCausalLM"]
    with pytest.raises(RecipeError, match=why):
        mlps_to_tile({"torch_compile": kind == "llama"}, load_recipe(None, []), config)


@pytest.mark.parametrize("reentrant", [False, True])
def test_inputs_of_layers_leave_the_device_and_losses_do_not_change(reentrant: bool) -> None:
    losses, alive = [], []
    for offloads in (False, True):
        model = made("llama")
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
        if offloads:
            offload_checkpointed_inputs(model)
        kept: list[StorageWeakRef] = []

        def keep(_: Any, inputs: Any, kept: list[StorageWeakRef] = kept) -> None:
            kept.append(StorageWeakRef(inputs[0].untyped_storage()))

        for layer in model.model.layers:
            layer.register_forward_pre_hook(keep)
        ids = torch.arange(80)[None]
        loss = model(input_ids=ids, labels=ids).loss
        alive.append([not ref.expired() for ref in kept])
        loss.backward()
        losses.append((loss.item(), [parameter.grad for parameter in model.parameters()]))
    assert alive == [[True, True], [False, False]]
    assert losses[0][0] == losses[1][0]
    torch.testing.assert_close(losses[1][1], losses[0][1], rtol=0, atol=0)


def test_flash_attention_knows_the_documents_of_the_whole_row() -> None:
    """The positions that each layer gathers would tell, too, but in a rehearsal only those of one rank are known."""
    given = _attend_to_documents(lambda *_, **given: given, None, torch.zeros(1), documents=[3, 2], scaling=1.0)
    assert given.pop("cu_seq_lens_q").tolist() == given.pop("cu_seq_lens_k").tolist() == [0, 3, 5]
    assert given == {"max_length_q": 3, "max_length_k": 3, "scaling": 1.0}
