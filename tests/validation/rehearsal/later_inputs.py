"""What the scripts read that were chosen last: tokens in three formats, InternVL's model, a ds_config."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import yaml

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
    """Make in `folder` what modded-nanogpt, RWKV, Megatron, TinyLlama, nanotron, InternVL and yarn read."""
    _write_fineweb(folder / "modded-nanogpt" / "data" / "fineweb10B")
    minipile = folder / "RWKV-LM" / "RWKV-v7" / "train_temp" / "data" / "minipile"
    _write_indexed(minipile, documents=1, tokens=1498226207)  # as many as the demo asks for
    _write_indexed(folder / "megatron_text_document", documents=1000, tokens=3000)
    batches = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "steps_per_print": 1}
    settings = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "gradient_clipping": 1.0}
    _write_json(folder / "megatron_zero2.json", batches | settings)
    _write_packed(folder / "data" / "slim_star")
    _write_nanotron(folder / "nanotron_qwen.yaml", folder / "nanotron" / "examples" / "config_qwen.yaml")
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


def _write_indexed(stem: Path, documents: int, tokens: int) -> None:
    """Documents of so many tokens each, in Megatron's format: an index, and a hole of zeros."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    uint16 = 8
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, uint16, documents, documents + 1)
    index += struct.pack(f"<{documents}i", *[tokens] * documents)
    index += struct.pack(f"<{documents}q", *range(0, 2 * tokens * documents, 2 * tokens))
    index += struct.pack(f"<{documents + 1}q", *range(documents + 1))
    stem.with_suffix(".idx").write_bytes(index)
    with stem.with_suffix(".bin").open("wb") as file:
        file.truncate(2 * tokens * documents)


def _write_packed(folder: Path, length: int = 2049, blocks: int = 8, files: int = 64) -> None:
    """Chunks as lit_gpt's packed_dataset.py writes them, enough files of each name for 8 ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    uint16, tokens = 8, length * blocks
    chunk = b"LITPKDS" + struct.pack("<QBQ", 1, uint16, tokens) + bytes(2 * tokens)
    for name in ("train_slim", "train_star", "validation"):
        for number in range(files):
            (folder / f"{name}_{number:010d}.bin").write_bytes(chunk)


def _write_nanotron(file: Path, example: Path) -> None:
    """nanotron's example, where it has been checked out, with the tokens that it makes up itself."""
    if example.is_file():
        config = yaml.safe_load(example.read_text(encoding="utf-8"))
        config["data_stages"][0]["data"]["dataset"] = None
        config["tokenizer"]["tokenizer_name_or_path"] = "robot-test/dummy-tokenizer-wordlevel"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")


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
