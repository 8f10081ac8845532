"""Values of the recipe's peft section: what peft takes, and what is refused and how."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.training.test_peft import SIZES, add, words
from zerokit.errors import RecipeError
from zerokit.recipe import load_recipe
from zerokit.training.peft.keys import check_peft_keys

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def ranks(adapted: PreTrainedModel) -> dict[str, int]:
    """By the last parts of the names of what LoRA adapts."""
    found = {}
    for name, parameter in adapted.named_parameters():
        if ".lora_A" in name:
            module = name.partition(".lora_A")[0].replace(".base_layer", "")
            found[module.rpartition(".")[2]] = parameter.shape[0]
    return found


@pytest.mark.parametrize(
    ("keys", "where", "message"),
    [
        ({"type": "lroa"}, "--peft.type", "unknown type 'lroa'. Did you mean 'lora'?"),
        ({"type": "5"}, "--peft.type", "unknown type '5'. Choose one of: lora, qlora, ia3"),
        ({"type": "[lora]"}, "--peft.type", "unknown type '['lora']'"),
        ({"lora_alfa": "8"}, "--peft.lora_alfa", "is not a LoraConfig key. Did you mean 'lora_alpha'?"),
        ({"bnb_4bit_quant_type": "nf4"}, "--peft.bnb_4bit_quant_type", "(its type is qlora)"),
        ({"rank": "8"}, "--peft.rank", "is not a LoraConfig key. It is called r"),
        ({"inference_mode": "true"}, "--peft.inference_mode", "is not a LoraConfig key"),
        (
            {"type": "ia3", "feedforward_module": "[x]"},
            "--peft.feedforward_module",
            "'feedforward_module' is not a IA3Config key. Did you mean 'feedforward_modules'?",
        ),
        (
            {"type": "p_tuning", "num_virtual_token": "5"},
            "--peft.num_virtual_token",
            "is not a PromptEncoderConfig key. Did you mean 'num_virtual_tokens'?",
        ),
        (
            {"type": "prompt_tuning", "num_virtual_tokens": "0"},
            "--peft.num_virtual_tokens",
            "is 0, and prompt",
        ),
    ],
)
def test_wrong_keys_are_named_with_the_nearest(keys: dict[str, str], where: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        check_peft_keys(load_recipe(None, words(**keys)))
    assert caught.value.where == where
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"r": "0"}, ["--peft.r: r is 0. Make it at least 1"]),
        ({"r": "a"}, ["--peft.r: expected a whole number, found the text 'a'. Change the value"]),
        ({"lora_alpha": "0"}, ["--peft.lora_alpha: lora_alpha is 0. Make it more than 0"]),
        (
            {"bias": "some", "use_rslora": "5"},
            [
                "--peft.bias: 'some' is not a choice here. Write 'none', 'all' or 'lora_only'",
                "--peft.use_rslora: expected true or false, found 5. Change the value",
            ],
        ),
        (
            {"target_modules": "[k_proj, q_porj]", "modules_to_save": "[lm_haed]"},
            [
                "--peft.target_modules: the model has no module 'q_porj'. Did you mean 'q_proj'?",
                "--peft.modules_to_save: the model has no module 'lm_haed'. Did you mean 'lm_head'?",
            ],
        ),
        (
            {"target_modules": "[nothing]", "rank_pattern": "{zzz: 4}"},
            [
                f"--peft.{key}: the model has no module '{name}'. Its layers are down_proj, embed_tokens, "
                "gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj"
                for key, name in (("target_modules", "nothing"), ("rank_pattern", "zzz"))
            ],
        ),
        (
            {"target_modules": "q_proj"},
            [
                "--peft.target_modules: no module's whole name is as the pattern 'q_proj' says. "
                "Write [q_proj], a list of ends of names"
            ],
        ),
        (
            {"target_modules": "[norm.weight]"},
            [
                "--peft.target_modules: the model has no module 'norm.weight'. It is a parameter: name it in "
                "target_parameters"
            ],
        ),
        (
            {"exclude_modules": "("},
            ["embedded default recipe (peft): LoRA: missing ), unterminated subpattern at position 0"],
        ),
        (
            {"target_modules": "[q_proj]", "exclude_modules": "[q_proj]"},
            [
                "--peft.target_modules: LoRA: no module is left to adapt. See which ones exclude_modules, "
                "modules_to_save or layers_to_transform leave out"
            ],
        ),
        (
            {"lora_dropout": "2"},
            ["embedded default recipe (peft): LoRA: dropout probability has to be between 0 and 1"],
        ),
    ],
)
def test_what_peft_refuses_or_passes_over_is_a_recipe_error(
    keys: dict[str, str], told: list[str], model: PreTrainedModel
) -> None:
    with pytest.raises(RecipeError) as caught:
        add(model, **keys)
    for error, line in zip((caught.value, *caught.value.others), told, strict=True):
        assert str(error).startswith(line)
        assert "\n" not in str(error)


ALL = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [
        ("[q_proj, self_attn.k_proj]", {"q_proj", "k_proj"}),
        ("[model.layers.0.self_attn.q_proj]", {"q_proj"}),
        ("[q_proj, query_key_value]", {"q_proj"}),
        (r".*\.(q|up)_proj", {"q_proj", "up_proj"}),
        ("all-linear", ALL),
        ("All-Linear", ALL),
    ],
)
def test_names_as_peft_takes_them_are_no_mistakes(
    targets: str, adapted: set[str], model: PreTrainedModel
) -> None:
    keys = {"target_modules": targets, "rank_pattern": "{q_proj: 2, '.*up_proj': 3}"}
    given = {"q_proj": 2, "up_proj": 3}
    assert ranks(add(model, r="4", **keys)) == {name: given.get(name, 4) for name in adapted}


def test_rank_patterns_are_of_parameters_too(model: PreTrainedModel) -> None:
    keys = {"target_parameters": "[q_proj.weight]", "rank_pattern": "{self_attn.q_proj.weight: 2}"}
    assert ranks(add(model, r="4", target_modules="[v_proj]", **keys)) == {"v_proj": 4, "q_proj": 2}


def test_names_of_other_models_are_no_mistakes_beside_those_of_this_one(model: PreTrainedModel) -> None:
    keys = {"exclude_modules": "[vision_tower]", "modules_to_save": "[head, score]"}
    adapted = add(model, target_modules="[q_proj]", **keys)
    assert ranks(adapted) == {"q_proj": 8}
    whole = [name for name, p in adapted.named_parameters() if p.requires_grad and "lora_" not in name]
    assert whole == ["base_model.model.lm_head.modules_to_save.default.weight"]


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("as_pattern", [False, True])
def test_experts_are_called_what_their_layers_were_called_before(model_type: str, as_pattern: bool) -> None:
    """peft makes names of parameters of them, which are what transformers keeps now."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    names = {"mixtral": ("w1", "w2", "w3"), "qwen3_moe": ("gate_proj", "up_proj", "down_proj")}[model_type]
    sizes = {**SIZES, "intermediate_size": 64, "moe_intermediate_size": 16, "num_key_value_heads": 2}
    experts = {"num_experts": 2, "num_local_experts": 2, "head_dim": 8}
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**sizes, **experts))
    targets = rf".*experts.*\.({'|'.join(names)})" if as_pattern else f"[q_proj, {', '.join(names)}]"
    adapted = add(model, r="4", target_modules=targets)
    assert adapted.peft_config["default"].target_parameters == {"gate_up_proj", "down_proj"}
    with pytest.raises(RecipeError, match=r"no module 'q_porj'\. Did you mean 'q_proj'"):
        add(model, target_modules=f"[q_porj, {', '.join(names)}]")
    with pytest.raises(RecipeError, match="without also targeting"):
        add(model, target_modules=f"[q_proj, {names[0]}]")
