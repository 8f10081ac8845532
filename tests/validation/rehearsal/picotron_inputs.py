"""What picotron's train.py reads: its config, and weights, which it reads from their file by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_run(folder: Path, model: dict[str, Any]) -> None:
    """Write picotron.json for 8 ranks, and weights of `model`, a config of Llama: a file that is a hole."""
    run = {
        "distributed": {"tp_size": 2, "cp_size": 1, "pp_size": 2, "dp_size": 2, "pp_engine": "1f1b"},
        "model": {"name": "picotron-llama", "use_fused_adam": True},
        "training": {
            **{"seed": 42, "learning_rate": 3e-4, "total_train_steps": 4, "max_tokens": None},
            **{"seq_length": 512, "micro_batch_size": 2, "gradient_accumulation_steps": 4},
        },
        "dataset": {"name": "texts", "num_workers": 0, "num_proc": 1},
        "checkpoint": {"save_dir": "ckpt", "save_frequency": 300, "load_path": ""},
        "logging": {"use_wandb": False},
        "environment": {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "FLASH_ATTEN": "1"},
    }
    run["distributed"] |= {"backend": "nccl", "use_cpu": False}
    run["environment"] |= {"HF_TOKEN": "none"}
    (folder / "picotron.json").write_text(json.dumps(run), encoding="utf-8")
    # Where it looks whether it has the model, and for its weights.
    for place in (folder / "hf_model" / "picotron-llama", folder / "hf_model_safetensors"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(model), encoding="utf-8")
    write_hole(folder / "hf_model_safetensors" / "model.safetensors", _shapes(model))


def write_hole(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write a safetensors file of zeros in bfloat16, which takes no space on the disk."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, size = end, 2
        for length in shape:
            size *= length
        end = begin + size
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    words = json.dumps(header).encode()
    file.write_bytes(len(words).to_bytes(8, "little") + words)
    with file.open("r+b") as opened:
        opened.truncate(8 + len(words) + end)


def _shapes(model: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, vocab = (model[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    values = hidden // model["num_attention_heads"] * model["num_key_value_heads"]
    of_layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "mlp.down_proj": (hidden, inner),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (values, hidden),
        "self_attn.v_proj": (values, hidden),
        "self_attn.o_proj": (hidden, hidden),
    }
    layers = {
        f"model.layers.{layer}.{part}.weight": shape
        for layer in range(model["num_hidden_layers"])
        for part, shape in of_layer.items()
    }
    return {"model.embed_tokens.weight": (vocab, hidden), **layers, "model.norm.weight": (hidden,)}
