"""Trains a model of a given config by deepspeed.initialize, as the file given as the only argument says."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch._dynamo  # its import fails within zero.Init, which replaces Tensor.__new__
import transformers
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from transformers import AutoConfig
from transformers.integrations import HfDeepSpeedConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

OF_BITSANDBYTES = {
    "adamw_8bit": "AdamW8bit",
    "paged_adamw_8bit": "PagedAdamW8bit",
    "paged_adamw_32bit": "PagedAdamW32bit",
    "lion_8bit": "Lion8bit",
    "paged_lion_8bit": "PagedLion8bit",
}


def in_4_bits(architecture: str, config: Any, dtype: Any, *, attention: str, double_quant: bool) -> Any:
    """As QLoRA has it: linear layers in nf4. A rehearsal reads no weights from the folder."""
    from transformers import BitsAndBytesConfig

    config.architectures = [architecture]
    config.dtype = dtype
    quantized = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=double_quant,
        bnb_4bit_compute_dtype=dtype,
    )
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return getattr(transformers, architecture).from_pretrained(
            folder,
            quantization_config=quantized,
            dtype=dtype,
            attn_implementation=attention,
            device_map={"": int(os.environ["LOCAL_RANK"])},
        )


def with_adapter(model: Any, lora: dict[str, Any] | None, ia3: dict[str, Any] | None) -> Any:
    """Adapters of the base model's own dtype."""
    from peft import IA3Config, LoraConfig, PeftConfig, get_peft_model

    config: PeftConfig
    if lora:
        config = LoraConfig(
            r=lora["rank"],
            target_modules=lora["target_modules"],
            use_dora=lora.get("dora", False),
            lora_dropout=0.1 if lora.get("dropout") else 0.0,
            task_type="CAUSAL_LM",
        )
    else:
        config = IA3Config(**ia3, task_type="CAUSAL_LM")
    return get_peft_model(model, config, autocast_adapter_dtype=False)


def optimizer_of(kind: str | None, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer | None:
    """What a script makes; None leaves it to the ds_config."""
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-5)
    if kind == "adamw_fused":
        return torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=1e-5)
    if kind == "sgd_momentum":
        return torch.optim.SGD(parameters, lr=1e-5, momentum=0.9)
    if kind == "adagrad":
        return torch.optim.Adagrad(parameters, lr=1e-5)
    if kind == "adafactor":
        return torch.optim.Adafactor(parameters, lr=1e-5)
    if kind in OF_BITSANDBYTES:
        import bitsandbytes

        made: torch.optim.Optimizer = getattr(bitsandbytes.optim, OF_BITSANDBYTES[kind])(parameters, lr=1e-5)
        return made
    assert kind is None, kind
    return None


def build(point: dict[str, Any]) -> Any:
    """The engine."""
    keys = dict(point["config"])
    config = AutoConfig.for_model(keys.pop("model_type"), **keys)
    padding = getattr(config, "pad_token_id", None)  # of an encoder-decoder
    for part in (config, getattr(config, "text_config", config)):
        part.use_cache = False
        part.pad_token_id = None  # transformers writes zeros into its row, which zero.Init has taken away
    ds_config = point["ds_config"]
    stage_3 = ds_config["zero_optimization"]["stage"] == 3
    architecture, dtype, attention = point["architecture"], DTYPES[point["precision"]], point["attention"]
    model: Any
    if point["load_in_4bit"]:
        double_quant = point["double_quant"]
        model = in_4_bits(architecture, config, dtype, attention=attention, double_quant=double_quant)
    else:
        with deepspeed.zero.Init(config_dict_or_path=ds_config, enabled=stage_3):
            model = getattr(transformers, architecture)._from_config(
                config, dtype=dtype, attn_implementation=attention
            )
    if config.is_encoder_decoder:  # the decoder's inputs begin with it
        config.pad_token_id = model.config.pad_token_id = padding
    for module in model.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):  # RoBERTa counts positions from it
            module.padding_idx = 1
    if point["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if point["lora"] or point["ia3"]:
        # While it is there, peft knows that weights are divided: DoRA measures them.
        known = HfDeepSpeedConfig(ds_config) if stage_3 else None
        model = with_adapter(model, point["lora"], point["ia3"])
        del known
        if point["checkpointing"]:
            model.enable_input_require_grads()
    groups = None
    if point.get("sequence", 1) > 1:
        ALL_MASK_ATTENTION_FUNCTIONS[attention] = lambda **_: None  # as in zerokit's training; it is not used
        groups = UlyssesSPAttentionHF.register_with_transformers(
            model, attention, point["sequence"], point["micro_batch_size"]
        )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=trained,
        optimizer=optimizer_of(point["optimizer"], trained),
        config=ds_config,
        mpu=groups,
    )
    return engine


def main() -> None:
    point = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    deepspeed.init_distributed()
    engine = build(point)
    shape = (point["micro_batch_size"], point["seq_len"])
    ids = torch.randint(0, 100, shape, device=engine.device)
    engine.train()
    for _ in range(point["steps"] * point["accumulation"]):
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        del loss
        engine.step()


if __name__ == "__main__":
    main()
