"""What nanoVLM reads: its backbones from the Hub's cache, and more pictures than it validates on."""

from __future__ import annotations

import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

from tests.validation.rehearsal.local_inputs import write_tokenizer
from tests.validation.rehearsal.pretraining_inputs import decoder_shapes, write_zeros

_SMOLLM2 = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 960,
    "intermediate_size": 2560,
    "num_hidden_layers": 32,
    "num_attention_heads": 15,
    "num_key_value_heads": 5,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
_SIGLIP2 = {
    "model_type": "siglip_vision_model",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 512,
    "patch_size": 16,
}
_SHARDS, _ROWS = 24, 2200
"""Three shards for each of eight ranks, a shard for each worker. The first 50,000 rows are for validation."""
_DEFAULT = """---
configs:
- config_name: default
  data_files: [{split: train, path: "*.parquet"}]
---
"""


def write_nanovlm(folder: Path) -> None:
    """Make in `folder` SmolLM2-360M and SigLIP 2 (base, 512 pixels) of zeros, and FineVision's rows."""
    language = folder / "SmolLM2-360M-Instruct"
    write_tokenizer(language, vocab_size=_SMOLLM2["vocab_size"], model_max_length=8192)
    shapes = _smollm2s_shapes()
    _write_model(language, _SMOLLM2, shapes)
    # Scripts ask for an index first, and this cache cannot say that a repository has none.
    index = {"metadata": {}, "weight_map": dict.fromkeys(shapes, "model.safetensors")}
    (language / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    vision = folder / "siglip2-base-patch16-512"
    vision.mkdir(exist_ok=True)
    _write_model(vision, {"model_type": "siglip", "vision_config": _SIGLIP2}, _siglip2s_shapes())
    for name, model in (("HuggingFaceTB--SmolLM2-360M-Instruct", language), (f"google--{vision.name}", vision)):
        write_cached(folder / "hub" / f"models--{name}", model)
    _write_finevision(folder / "HuggingFaceM4" / "FineVision_concat_shuffled_2")


def write_cached(place: Path, model: Path) -> None:
    """Have the Hub's cache at `place` hold `model`, for scripts that ask for a repository's files."""
    snapshot = place / "snapshots" / "0"
    snapshot.mkdir(parents=True, exist_ok=True)
    for file in model.iterdir():
        if file.suffix == ".safetensors":  # mostly a hole, which a copy would fill
            (snapshot / file.name).unlink(missing_ok=True)
            (snapshot / file.name).symlink_to(file.absolute())
        elif file.is_dir():
            shutil.copytree(file, snapshot / file.name, dirs_exist_ok=True)
        else:
            shutil.copy(file, snapshot / file.name)
    (place / "refs").mkdir(exist_ok=True)
    (place / "refs" / "main").write_text(snapshot.name, encoding="utf-8")


def _write_model(folder: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_zeros(folder / "model.safetensors", shapes)


def _smollm2s_shapes() -> dict[str, tuple[int, ...]]:
    return decoder_shapes(words=49152, width=960, inner=2560, keys=320, layers=32)


def _siglip2s_shapes() -> dict[str, tuple[int, ...]]:
    width, inner = 768, 3072
    of_layer: dict[str, tuple[int, ...]] = {
        **{f"self_attn.{name}": (width, width) for name in ("q_proj", "k_proj", "v_proj", "out_proj")},
        "mlp.fc1": (inner, width),
        "mlp.fc2": (width, inner),
        "layer_norm1": (width,),
        "layer_norm2": (width,),
    }
    parts = {f"encoder.layers.{layer}.{name}": shape for layer in range(12) for name, shape in of_layer.items()}
    parts |= {"embeddings.patch_embedding": (width, 3, 16, 16), "post_layernorm": (width,)}
    weights = {f"vision_model.{name}.weight": shape for name, shape in parts.items()}
    biases = {name.removesuffix("weight") + "bias": shape[:1] for name, shape in weights.items()}
    return weights | biases | {"vision_model.embeddings.position_embedding.weight": (1024, width)}


def _write_finevision(folder: Path) -> None:
    from PIL import Image
    from pyarrow import Table, parquet

    made_up, file = random.Random(0), io.BytesIO()
    Image.frombytes("RGB", (64, 64), made_up.randbytes(64 * 64 * 3)).save(file, "PNG")
    texts = [{"user": "What is it?", "assistant": "It is a number. " * 9}]
    row = {"images": [{"bytes": file.getvalue(), "path": None}], "texts": texts, "source": "made up"}
    feature = {"feature": {"_type": "Image"}, "_type": "List"}
    strings = {"dtype": "string", "_type": "Value"}
    of_texts = {"feature": {"user": strings, "assistant": strings}, "_type": "List"}
    features = {"images": feature, "texts": of_texts, "source": strings}
    table = Table.from_pylist([row] * _ROWS)
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(_SHARDS):
        parquet.write_table(table, folder / f"{shard:05d}.parquet", row_group_size=100)
    (folder / "README.md").write_text(_DEFAULT, encoding="utf-8")
