"""What OpenChat, EasyContext, Lingua, EAGLE and fsdp_qlora read: tokens as each has them, hollow weights."""

from __future__ import annotations

import json
import math
import shutil
import struct
from pathlib import Path
from typing import Any

from tests.validation.rehearsal.local_inputs import ARCHITECTURES, write_tokenizer
from tests.validation.rehearsal.public_models import write_as_before

LINES = 64
_LLAMA_3_TEMPLATE = (
    "{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content }}<|eot_id|>{% endfor %}"
)
_SHARD = 10 * 10**9
"""Bytes of a file of weights, at most, as transformers cut them."""
_LONG = 512_001
"""Tokens of a text, one more than EasyContext's longest stage reads."""


def write_sequences(folder: Path) -> None:
    """Make in `folder` what OpenChat, EasyContext, Lingua and EAGLE read."""
    _write_openchat(folder / "pretokenized.0.parquet")
    _write_long_texts(folder / "PY007" / "slimpajama_llama_tokenized_upsample_4096_chunk_1M")
    chunks = folder / "lingua" / "data" / "shuffled" / "dclm_baseline_1.0"
    chunks.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"text": "It is a number, and not another. " * 100}) + "\n"
    for number in range(8):
        (chunks / f"dclm_baseline_1.0.chunk.{number:02d}.jsonl").write_text(line * 400, encoding="utf-8")
    _write_conversations(folder / "llama3-conversations.jsonl")
    llama_2 = ARCHITECTURES["llama-2-7b"] | {"bos_token_id": 1, "eos_token_id": 2}
    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8}
    _write_llama(folder / "meta-llama" / "Llama-2-70b-hf", llama_2 | sizes | heads)
    llama_3 = ARCHITECTURES["llama-3.1-8b"]
    _write_llama(folder / "meta-llama" / "Llama-3.1-8B-Instruct", llama_3)
    template = folder / "meta-llama" / "Llama-3.1-8B-Instruct" / "chat_template.jinja"
    template.write_text(_LLAMA_3_TEMPLATE, encoding="utf-8")
    if (folder / "fsdp_qlora").is_dir():  # which names it from its own folder
        shutil.copytree(folder / "yahma", folder / "fsdp_qlora" / "yahma", dirs_exist_ok=True)


def _write_openchat(file: Path, texts: int = 2048, length: int = 900) -> None:
    """Conversations as ochat.data.generate_dataset writes them, packed where they are read."""
    import pyarrow
    from pyarrow import parquet

    numbers = {
        "nz_input_ids": pyarrow.int32(),
        "nz_position_ids": pyarrow.int32(),
        "nz_shifted_label_ids": pyarrow.int32(),
        "nz_shifted_loss_weights": pyarrow.float32(),
    }
    columns: dict[str, Any] = {
        "total_length": pyarrow.array([length] * texts, pyarrow.int32()),
        "seqlens": pyarrow.array([[length]] * texts, pyarrow.list_(pyarrow.int32())),
    }
    for name, kind in numbers.items():
        one = [1.0] * length if kind == pyarrow.float32() else list(range(length))
        columns[name] = pyarrow.array([one] * texts, pyarrow.list_(kind))
    columns["num_seqs"] = pyarrow.array([1.0] * texts, pyarrow.float32())
    about = {"metadata_json": json.dumps({"model_type": "openchat_3.6"})}
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata(about), file)


def _write_long_texts(folder: Path) -> None:
    from datasets import Dataset

    folder.mkdir(parents=True, exist_ok=True)
    tokens = [number * 7919 % 32000 for number in range(_LONG)]
    Dataset.from_list([{"input_ids": tokens}] * 8).to_parquet(str(folder / "train.parquet"))


def _write_conversations(file: Path) -> None:
    """ShareGPT's conversations, whose ends EAGLE finds by Llama 3's words."""
    lines = []
    for number in range(LINES):
        turns = [{"from": "human", "value": f"What is {number}?"}, {"from": "gpt", "value": "It is a number. " * 60}]
        lines.append(json.dumps({"id": str(number), "conversations": turns * 2}) + "\n")
    file.write_text("".join(lines), encoding="utf-8")


def _write_llama(folder: Path, config: dict[str, Any]) -> None:
    """A model for scripts that read its files themselves: weights of published shapes, of holes alone."""
    longest = config["max_position_embeddings"]
    write_tokenizer(folder, vocab_size=config["vocab_size"], model_max_length=longest)
    write_as_before(folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    width, inner, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    narrow = width * config["num_key_value_heads"] // config["num_attention_heads"]
    layer = {"self_attn.q_proj": [width, width], "self_attn.k_proj": [narrow, width]}
    layer |= {"self_attn.v_proj": [narrow, width], "self_attn.o_proj": [width, width]}
    layer |= {f"mlp.{name}_proj": [inner, width] for name in ("gate", "up")}
    layer |= {"mlp.down_proj": [width, inner], "input_layernorm": [width], "post_attention_layernorm": [width]}
    shapes = {"model.embed_tokens": [words, width]}
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    shapes |= {"model.norm": [width], "lm_head": [words, width]}
    files: list[dict[str, list[int]]] = [{}]
    for name, shape in shapes.items():
        if sum(map(_bytes_of, files[-1].values())) + _bytes_of(shape) > _SHARD:
            files.append({})
        files[-1][f"{name}.weight"] = shape
    places = {}
    for number, tensors in enumerate(files, 1):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        places |= dict.fromkeys(tensors, file)
        _write_holes(folder / file, tensors)
    index = {"metadata": {"total_size": sum(map(_bytes_of, shapes.values()))}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _bytes_of(shape: list[int]) -> int:
    """Those of half precision."""
    return 2 * math.prod(shape)


def _write_holes(file: Path, tensors: dict[str, list[int]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [end, end + _bytes_of(shape)]}
        end += _bytes_of(shape)
    words = json.dumps(header).encode()
    with file.open("wb") as written:
        written.write(struct.pack("<Q", len(words)) + words)
        written.truncate(8 + len(words) + end)
