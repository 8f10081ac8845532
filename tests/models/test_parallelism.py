"""The model types that parallelism can divide."""

import pytest

from zerokit.models.parallelism import _TABLE


@pytest.mark.torch
def test_the_table_is_that_of_transformers_and_deepspeed() -> None:
    from deepspeed.module_inject.tp_plan_converter import SUPPORTED_STYLES
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = {name: set(types) for name, types in _TABLE.items()}
    per_layer = {"dots3_note", "dots3_note_text"}  # which have the key, but raise for the whole model
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - {"gemma4_assistant"}:  # has no default config
        config = CONFIG_MAPPING[model_type]().get_text_config(decoder=True)
        plan = set((getattr(config, "base_model_tp_plan", None) or {}).values())
        assert (model_type in known["tensor"]) == bool(plan and plan <= SUPPORTED_STYLES), model_type
        has_key = model_type in per_layer or hasattr(config, "num_key_value_heads")
        assert (model_type in known["without_key_value_heads"]) != has_key, model_type
    assert set().union(*known.values()) <= MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys()
