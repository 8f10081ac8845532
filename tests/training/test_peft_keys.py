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
    ("keys", "message"),
    [
        ({"type": "lroa"}, "unknown type 'lroa'. Did you mean 'lora'?"),
        ({"type": "5"}, "unknown type '5'. Choose one of: lora, qlora, ia3"),
        ({"type": "[lora]"}, "unknown type '['lora']'"),
        ({"lora_alfa": "8"}, "is not a LoraConfig key. Did you mean 'lora_alpha'?"),
        ({"bnb_4bit_quant_type": "nf4"}, "(its type is qlora)"),
        ({"rank": "8"}, "is not a LoraConfig key. It is called r"),
        ({"inference_mode": "true"}, "is not a LoraConfig key"),
        (
            {"type": "ia3", "feedforward_module": "[x]"},
            "'feedforward_module' is not a IA3Config key. Did you mean 'feedforward_modules'?",
        ),
        (
            {"type": "p_tuning", "num_virtual_token": "5"},
            "is not a PromptEncoderConfig key. Did you mean 'num_virtual_tokens'?",
        ),
    ],
)
def test_wrong_keys_are_named_with_the_nearest(keys: dict[str, str], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        check_peft_keys(load_recipe(None, words(**keys)))
    assert caught.value.where == f"--peft.{[*keys][-1]}"
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"r": "0"}, ["--peft.r: r is 0. Make it at least 1"]),
        ({"r": "a"}, ['--peft.r: expected a whole number, found the string "a". Change the value']),
        ({"lora_alpha": "0"}, ["--peft.lora_alpha: lora_alpha is 0. Write another number"]),
        ({"lora_alpha": "a"}, ['--peft.lora_alpha: expected a number, found the string "a"']),
        ({"r": "true"}, ["--peft.r: expected a number, found true. Change the value"]),
        (
            {"init_lora_weights": "pisa"},
            ["--peft.init_lora_weights: 'pisa' is not a choice here. Did you mean 'pissa'?"],
        ),
        (
            {"init_lora_weights": "5"},
            ["--peft.init_lora_weights: 5 is not a choice here. Write true or false, or 'gaussian', 'eva', "],
        ),
        ({"init_lora_weights": "xyz"}, ["embedded default recipe (peft): LoRA: Unknown initialization"]),
        (
            {"trainable_token_indices": "{a: x}"},
            ['--peft.trainable_token_indices: expected a list, found the string "x". Change the value'],
        ),
        (
            {"trainable_token_indices": "5"},
            ["--peft.trainable_token_indices: expected a list or a mapping, found 5. Change the value"],
        ),
        ({"eva_config": "5"}, ["--peft.eva_config: expected a mapping, found 5. Change the value"]),
        (
            {"type": "prompt_tuning", "num_virtual_tokens": "0", "token_dim": "a"},
            [
                "--peft.num_virtual_tokens: num_virtual_tokens is 0. Make it at least 1",
                '--peft.token_dim: expected a whole number, found the string "a". Change the value',
            ],
        ),
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
                "--peft.target_modules: the model has no module 'norm.weight'. It is a parameter, which LoRA "
                "takes in target_parameters"
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


@pytest.mark.parametrize(
    ("type_", "key", "written", "taken"),
    [
        ("lora", "r", "8.0", 8),
        ("lora", "r", "'8'", 8),
        ("lora", "lora_alpha", "22.6", 22.6),
        ("lora", "lora_alpha", "-16", -16),
        ("lora", "use_rslora", "'yes'", True),
        ("lora", "layers_to_transform", "['0']", [0]),
        ("lora", "init_lora_weights", "pissa_niter_16", "pissa_niter_16"),
        ("lora", "init_lora_weights", "lora_ga", "lora_ga"),
        ("lora", "init_lora_weights", "Gaussian", "Gaussian"),
        ("lora", "init_lora_weights", "false", False),
        ("lora", "loftq_config", "{loftq_bits: 4}", {"loftq_bits": 4}),
        ("p_tuning", "num_virtual_tokens", "'5'", 5),
    ],
)
def test_values_are_read_as_peft_computes_with_them(type_: str, key: str, written: str, taken: object) -> None:
    asked = check_peft_keys(load_recipe(None, words(type=type_, **{key: written})))
    assert asked is not None
    assert (asked.keys[key], type(asked.keys[key])) == (taken, type(taken))


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
def test_names_as_peft_takes_them_are_no_mistakes(targets: str, adapted: set[str], model: PreTrainedModel) -> None:
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
