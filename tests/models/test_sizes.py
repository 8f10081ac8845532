"""Sizes that cannot be, and sizes that can: one line for the former, transformers' count for the latter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.each import each
from tests.examples import examples
from tests.models.configurations import odd_configurations
from tests.models.transformers_models import build, parameters_of_model, parameters_of_shape
from zerokit.errors import ModelError
from zerokit.models import architectures, load_model_shape

pytestmark = pytest.mark.torch

ODD = odd_configurations()
BASES = {name: config for name, config in ODD.items() if name.endswith((": tied", ": small"))}


def refusal(config: dict[str, Any]) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load_model_shape(config, allow_network=False, allow_torch=False)
    assert caught.value.where
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


@each(BASES, by=lambda name: BASES[name]["model_type"])
@pytest.mark.parametrize("value", [0, -1, 4096.0, "64", True, [], 10**400], ids=lambda value: repr(value)[:9])
def test_every_size_is_checked(name: str, value: Any) -> None:
    """Each whole number of each config; the few that may be zero or negative are left out."""
    config = BASES[name]
    may_be = {"first_k_dense_replace", "num_experts", "rotary_dim", "n_group", "topk_group"}
    for key, good in config.items():
        if isinstance(good, int) and not isinstance(good, bool) and key not in may_be:
            error = refusal({**config, key: value})
            assert f"'{key}'" in error.message, (key, str(error))


@each(BASES, by=lambda name: BASES[name]["model_type"])
@pytest.mark.parametrize("value", [0, 1, "yes", "false", []], ids=str)
def test_every_flag_is_checked(name: str, value: Any) -> None:
    config = BASES[name]
    flags = [key for key, good in config.items() if isinstance(good, bool)]
    for key in flags:
        if config["model_type"] not in ("t5", "mt5"):
            assert f"'{key}'" in refusal({**config, key: value}).message


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "llama", "num_attention_heads": 5}, "not a multiple of num_attention_heads 5"),
        ({"model_type": "llama", "head_dim": 64, "hidden_size": 100, "num_attention_heads": 3}, "100"),
        ({"model_type": "llama", "num_key_value_heads": 5}, "not a multiple of num_key_value_heads 5"),
        ({"model_type": "llama", "num_key_value_heads": 64}, "not a multiple"),
        ({"model_type": "llama", "vocab_size": None}, "'vocab_size' is null"),
        ({"model_type": "gpt2", "n_head": 7}, "not a multiple of n_head 7"),
        ({"model_type": "gpt2", "num_attention_heads": 7}, "not a multiple of n_head 7"),
        ({"model_type": "bert", "num_attention_heads": 7}, "not a multiple"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "of only 8 experts"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": 3}, "'mlp_only_layers' is 3"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 0}, "'decoder_sparse_step' is 0"),
        ({"model_type": "t5", "feed_forward_proj": "relu-gated"}, "'feed_forward_proj'"),
        ({"model_type": "llama", "quantization_config": "fp8"}, "'quantization_config'"),
        ({"model_type": "llama", "torch_dtype": 16}, "'torch_dtype'"),
        ({"model_type": 3}, "'model_type' is 3"),
        ({"model_type": "bert", "architectures": ["BertForTokenClassification"], "id2label": 3}, "id2label"),
        ({"model_type": "bert", "architectures": ["BertForTokenClassification"], "num_labels": 0}, "num_lab"),
    ],
)
def test_what_does_not_fit_together(config: dict[str, Any], words: str) -> None:
    assert words in str(refusal(config))


def test_a_missing_size_is_named() -> None:
    """Every size has a default in transformers but the sizes of a section that is another model's."""
    for name in architectures.model_types():
        assert load_model_shape({"model_type": name}).num_parameters > 0


small = st.integers(1, 9)


@st.composite
def decoders(draw: st.DrawFn) -> dict[str, Any]:
    """A decoder of any such type, with any sizes that divide, and any flags."""
    names = [
        "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2", "granite",
        "smollm3", "mixtral", "gpt_oss", "qwen2_moe", "qwen3_moe",
    ]  # fmt: skip
    key_value_heads, groups, head_dim = draw(small), draw(st.integers(1, 4)), 2 * draw(small)
    heads = key_value_heads * groups
    config = {
        "model_type": draw(st.sampled_from(names)),
        "hidden_size": heads * head_dim,
        "intermediate_size": draw(st.integers(1, 50)),
        "num_hidden_layers": draw(st.integers(1, 4)),
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "vocab_size": draw(st.integers(1, 400)),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "num_experts": draw(st.integers(2, 5)),
        "num_experts_per_tok": draw(st.integers(1, 2)),
        "moe_intermediate_size": draw(small),
        "shared_expert_intermediate_size": draw(small),
        "decoder_sparse_step": draw(st.integers(1, 3)),
        "mlp_only_layers": draw(st.lists(st.integers(0, 5), max_size=3)),
        "qkv_bias": draw(st.booleans()),
    }
    if config["model_type"] in ("gemma", "gemma2", "gemma3_text", "qwen3", "gpt_oss") or draw(st.booleans()):
        config["head_dim"] = head_dim
    if config["model_type"] == "gpt_oss":
        config["num_local_experts"] = config["num_experts"]
    return config


@examples(80)
@given(decoders())
def test_any_decoder_that_can_be_is_counted_as_transformers_does(config: dict[str, Any]) -> None:
    shape = load_model_shape(config, allow_torch=False)
    model = build(config, shape.architecture)
    assert parameters_of_shape(shape, model) == parameters_of_model(model)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@examples(300)
@given(st.data())
def test_any_value_anywhere_is_counted_or_refused_in_one_line(data: st.DataObject) -> None:
    config = dict(data.draw(st.sampled_from(list(ODD.values()))))
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from([*config, "architectures", "id2label", "head_dim", "dtype"]))
        config[key] = data.draw(json_values)
    assume(isinstance(config.get("model_type"), str) and config["model_type"] in architectures.model_types())
    try:
        shape = load_model_shape(config, allow_network=False, allow_torch=False)
    except ModelError:
        refusal(config)
    else:
        assert shape.num_parameters == sum(shape.parameters_by_kind.values()) > 0
        assert 0 < shape.num_active_parameters <= shape.num_parameters
