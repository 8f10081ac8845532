"""What the scripts read that were chosen last: fineweb's tokens, InternVL's model and data, a ds_config."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

_SHARD = 12 * 2**20
"""Tokens of a shard, more than one validation reads."""
_DOCUMENT = 1000
_QWEN2 = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 151655,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}
_INTERN_VIT = {
    "model_type": "intern_vit_6b",
    "architectures": ["InternVisionModel"],
    "hidden_size": 1024,
    "image_size": 448,
    "intermediate_size": 4096,
    "norm_type": "layer_norm",
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "qk_normalization": False,
    "qkv_bias": True,
    "torch_dtype": "bfloat16",
}


def write_later(folder: Path) -> None:
    """Make in `folder` what modded-nanogpt, RWKV, InternVL and yarn read."""
    _write_fineweb(folder / "modded-nanogpt" / "data" / "fineweb10B")
    _write_minipile(folder / "RWKV-LM" / "RWKV-v7" / "train_temp" / "data")
    _write_internvl(folder)
    named = {"deepspeed_config_file": "yarn/deepspeed/zero3.json", "zero3_init_flag": True}
    sharded = {
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_sharding_strategy": "FULL_SHARD",
        "fsdp_state_dict_type": "FULL_STATE_DICT",
        "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
    }
    for name, how in (
        ("zero3", {"distributed_type": "DEEPSPEED", "deepspeed_config": named}),
        ("fsdp", {"distributed_type": "FSDP", "fsdp_config": sharded, "mixed_precision": "bf16"}),
    ):
        common = {"compute_environment": "LOCAL_MACHINE", "num_processes": 8}
        _write_json(folder / f"accelerate_yarn_{name}.yaml", common | how)


def _write_fineweb(folder: Path) -> None:
    """Shards as modded-nanogpt's data/fineweb.py writes them; each document begins with the token 50256."""
    import numpy

    folder.mkdir(parents=True, exist_ok=True)
    header = numpy.zeros(256, dtype=numpy.int32)
    header[:3] = 20240520, 1, _SHARD
    tokens = numpy.arange(_SHARD, dtype=numpy.uint32) * 7919 % 50256
    tokens[::_DOCUMENT] = 50256
    for name in ("fineweb_train_000001.bin", "fineweb_val_000000.bin"):
        (folder / name).write_bytes(header.tobytes() + tokens.astype(numpy.uint16).tobytes())


def _write_minipile(folder: Path, tokens: int = 1498226207) -> None:
    """As many tokens as RWKV's demo asks for, in Megatron's format: one document, a hole of zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    uint16, documents = 8, 1
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, uint16, documents, documents + 1)
    index += struct.pack("<i3q", tokens, 0, 0, documents)
    (folder / "minipile.idx").write_bytes(index)
    with (folder / "minipile.bin").open("wb") as file:
        file.truncate(2 * tokens)


def _write_internvl(folder: Path) -> None:
    """InternVL2-1B's sizes with Qwen's tokenizer as the slow one reads it, and pictures to talk of."""
    model = folder / "InternVL2-1B"
    model.mkdir(exist_ok=True)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(folder / "Qwen2.5-0.5B-Instruct" / name, model / name)
    _write_json(model / "tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer"})
    chat: dict[str, Any] = {
        "model_type": "internvl_chat",
        "architectures": ["InternVLChatModel"],
        "llm_config": _QWEN2,
        "vision_config": _INTERN_VIT,
        "template": "Hermes-2",
        "ps_version": "v2",
        "torch_dtype": "bfloat16",
    }
    _write_json(model / "config.json", chat)
    lines = json.loads((folder / "pictures.json").read_text(encoding="utf-8"))
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "internvl.jsonl").write_text(text, encoding="utf-8")
    pictures = {"root": "images/", "annotation": "internvl.jsonl", "data_augment": False}
    _write_json(folder / "internvl.json", {"pictures": pictures | {"repeat_time": 20, "length": len(lines)}})


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")
