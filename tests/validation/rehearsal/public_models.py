"""The models that commands of results/scripts.json name: tokenizers, configs of published sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.validation.rehearsal.local_inputs import ARCHITECTURES, write_tokenizer

_QWEN = ARCHITECTURES["qwen2.5-0.5b"]
_GPT2 = ARCHITECTURES["gpt2-xl"]
_LLAMA = {**ARCHITECTURES["llama-2-7b"], "torch_dtype": "bfloat16"}
_TINY_LLAMA = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}
_OPT = {
    "model_type": "opt",
    "architectures": ["OPTForCausalLM"],
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
_T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": 32128,
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 3072,
    "num_layers": 12,
    "num_heads": 12,
    "decoder_start_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
_BLOOM = {
    "model_type": "bloom",
    "architectures": ["BloomForCausalLM"],
    "vocab_size": 250880,
    "hidden_size": 4096,
    "n_layer": 30,
    "n_head": 32,
}

_QWEN3_VL = {
    "model_type": "qwen3_vl",
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text",
        "vocab_size": 151936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "rope_theta": 5000000,
        "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]},
        "tie_word_embeddings": True,
        "eos_token_id": 0,
    },
    "vision_config": {
        "model_type": "qwen3_vl",
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "out_hidden_size": 2560,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [5, 11, 17],
    },
}

MODELS: dict[str, dict[str, Any]] = {
    "qwen": _QWEN,
    "qwen-with-eod": _QWEN,
    "gpt2": {**_GPT2, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "llama-7b": _LLAMA,
    "mistral-7b": {
        **_LLAMA,
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
    },
    "Llama-3.1-8B": ARCHITECTURES["llama-3.1-8b"],
    "MiniCPM-2B-sft-bf16": {
        **_LLAMA,
        "vocab_size": 122753,
        "hidden_size": 2304,
        "intermediate_size": 5760,
        "num_hidden_layers": 40,
        "num_attention_heads": 36,
        "num_key_value_heads": 36,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-32B-Instruct": {
        **_QWEN,
        "vocab_size": 152064,
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    },
    "qwen2.5-math-7b": {
        **_QWEN,
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
    "Qwen3-VL-4B-Instruct": _QWEN3_VL,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": {**_LLAMA, **_TINY_LLAMA},
    "facebook/opt-350m": {
        **_OPT,
        "hidden_size": 1024,
        "word_embed_proj_dim": 512,
        "ffn_dim": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "do_layer_norm_before": False,
    },
    "facebook/opt-1.3b": {
        **_OPT,
        "hidden_size": 2048,
        "word_embed_proj_dim": 2048,
        "ffn_dim": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
    },
    "bigscience/bloomz-7b1": _BLOOM,
    "t5-base": _T5,
    "t5-large": {**_T5, "d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16},
    "bart-base": {
        "model_type": "bart",
        "architectures": ["BartForConditionalGeneration"],
        "vocab_size": 50265,
        "d_model": 768,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "encoder_ffn_dim": 3072,
        "decoder_ffn_dim": 3072,
        "encoder_attention_heads": 12,
        "decoder_attention_heads": 12,
        "decoder_start_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 1,
    },
    "bert-base-cased": {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "vocab_size": 28996,
        "pad_token_id": 1,
    },
    "distilbert/distilbert-base-uncased": {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "vocab_size": 28996,
        "pad_token_id": 1,
    },
    "pythia": {**_GPT2, "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50254},
    "picotron-llama": {
        **_LLAMA,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
    },
    "vit": {"model_type": "vit", "architectures": ["ViTForImageClassification"]},
    "clip-vit": {
        "model_type": "clip_vision_model",
        "architectures": ["CLIPVisionModel"],
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 336,
        "patch_size": 14,
        "projection_dim": 768,
    },
}
"""Configs by folder, with the sizes each model was published with; special tokens are `write_tokenizer`'s."""
_PIXELS = {"shortest_edge": 784, "longest_edge": 50176}
_PATCHES = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "size": _PIXELS}
_PROCESSORS: dict[str, dict[str, Any]] = {
    "vit": {"image_processor_type": "ViTImageProcessor", "size": {"height": 224, "width": 224}},
    "clip_vision_model": {"image_processor_type": "CLIPImageProcessor", "crop_size": 336, "size": 336},
    "qwen3_vl": {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        **_PATCHES,
    },
}
_MASKED = {"mask_token": "<|mask|>", "cls_token": "<|cls|>", "sep_token": "<|sep|>"}
_BEGINS_WITH = {
    "llama": {"unk_token": "<|pad|>"},  # FastChat and Alpaca pad with it
    # SimPO, MiniCPM and Llama's cookbook begin with it
    **{name: {"bos_token": "<|end|>"} for name in ("mistral", "MiniCPM", "Llama-3.1")},
}
_QWENS_TOKENS = {
    151643: "<|endoftext|>",
    151644: "<|im_start|>",
    151645: "<|im_end|>",
    151652: "<|vision_start|>",
    151653: "<|vision_end|>",
    151655: "<|image_pad|>",
    151656: "<|video_pad|>",
    151662: "<|fim_pad|>",
}
"""Tokens of Qwen that scripts know by name or number."""
_NAMED = ("Qwen2.5-32B-Instruct", "qwen2.5-math-7b", "Qwen3-VL-4B-Instruct", "qwen-with-eod")
_QWENS_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}"
    "{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_models(folder: Path) -> None:
    """Make a folder for each model in `folder`."""
    for name, config in MODELS.items():
        _write_model(folder / name, config)


def _write_model(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kind, words = config["model_type"], config.get("text_config", config)
    if kind in _PROCESSORS:
        processor = _PROCESSORS[kind] | {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        _write_json(folder / "preprocessor_config.json", processor)
    if "vocab_size" in words:
        longest = words.get("max_position_embeddings", words.get("n_positions", 512))
        added = len(_MASKED) if kind == "bert" else 0
        write_tokenizer(folder, vocab_size=words["vocab_size"] - added, model_max_length=longest)
    for word, tokens in _BEGINS_WITH.items():
        if word in folder.name:
            file = folder / "tokenizer_config.json"
            _write_json(file, json.loads(file.read_text(encoding="utf-8")) | tokens)
    if folder.name in _NAMED:
        _name_tokens(folder)
    if "vocab_size" in words:
        write_as_before(folder)
    if kind == "qwen3_vl":
        video = {"video_processor_type": "Qwen3VLVideoProcessor", **_PATCHES}
        _write_json(folder / "video_preprocessor_config.json", video)
    if kind == "bert":
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_special_tokens(_MASKED)
        tokenizer.save_pretrained(folder)
        file = folder / "tokenizer_config.json"  # under the name that transformers 4 knows, too
        named = json.loads(file.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
        _write_json(file, named)
    _write_json(folder / "config.json", config)


def write_as_before(folder: Path) -> None:
    """Let transformers before 4.48, and tokenizers before 0.20, read a tokenizer, too."""
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    file = folder / "tokenizer_config.json"
    _write_json(file, json.loads(file.read_text(encoding="utf-8")) | {"chat_template": template})
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    merges = content["model"]["merges"]
    content["model"]["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
    _write_json(file, content)


def _name_tokens(folder: Path) -> None:
    """Give a tokenizer Qwen's special tokens under their numbers, and its chat template."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = {number: word for word, number in content["model"]["vocab"].items()} | _QWENS_TOKENS
    content["model"]["vocab"] = {word: number for number, word in sorted(vocabulary.items())}
    shape = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    content["added_tokens"] += [{"id": one, "content": word} | shape for one, word in _QWENS_TOKENS.items()]
    _write_json(file, content)
    (folder / "chat_template.jinja").write_text(_QWENS_TEMPLATE, encoding="utf-8")


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")
