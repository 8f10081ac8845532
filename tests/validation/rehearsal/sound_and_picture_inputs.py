"""What scripts of speech, pictures and diffusion read: sounds, boxes, codes, Stable Diffusion's parts."""

from __future__ import annotations

import json
import math
import random
import shutil
import wave
from array import array
from pathlib import Path
from typing import Any

from tests.validation.rehearsal.import_hooks import write_hook

LINES = 64
_WHISPER = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "vocab_size": 51865,
    "d_model": 768,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
    "decoder_start_token_id": 50258,
    "bos_token_id": 50257,
    "eos_token_id": 50257,
    "pad_token_id": 50257,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "num_mel_bins": 80,
}
_LANGUAGES = 99
_DETR = {
    "model_type": "detr",
    "architectures": ["DetrForObjectDetection"],
    "backbone": "resnet50",
    "use_timm_backbone": True,
    "use_pretrained_backbone": False,
    "num_queries": 100,
    "d_model": 256,
}
_CLIP_TEXT = {
    "model_type": "clip_text_model",
    "architectures": ["CLIPTextModel"],
    "vocab_size": 49408,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 77,
    "projection_dim": 768,
    "bos_token_id": 49406,
    "eos_token_id": 49407,
    "pad_token_id": 1,
}
_UNET = {
    "_class_name": "UNet2DConditionModel",
    "block_out_channels": [320, 640, 1280, 1280],
    "attention_head_dim": 8,
    "cross_attention_dim": 768,
    "sample_size": 64,
    "down_block_types": [*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"],
    "up_block_types": ["UpBlock2D", *["CrossAttnUpBlock2D"] * 3],
}
_VAE = {
    "_class_name": "AutoencoderKL",
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
    "sample_size": 512,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}
_NOISE = {
    "_class_name": "PNDMScheduler",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
    "clip_sample": False,
}
_PARTS = {
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "scheduler": ["diffusers", "PNDMScheduler"],
    "safety_checker": [None, None],
    "feature_extractor": [None, None],
}
_VOICES = """---
configs:
- config_name: hi
  data_files:
  - {split: train, path: train/*}
  - {split: validation, path: validation/*}
  - {split: test, path: test/*}
---
"""
_KOHYA = """
[general]
caption_extension = ".txt"

[[datasets]]
resolution = 512
batch_size = 4

  [[datasets.subsets]]
  image_dir = "captioned"
  num_repeats = 10
"""
_FEW_CODES = "module.range = lambda pictures: range(512)"
"""LlamaGen's data set names a file for each of ImageNet's 1,281,167 pictures."""
_RATE = 16000


def write_sounds_and_pictures(folder: Path) -> None:
    """Make in `folder` what Whisper, DETR, ControlNet, kohya's LoRA, LlamaGen and F5-TTS read."""
    _write_whisper(folder / "openai" / "whisper-small")
    voices = folder / "mozilla-foundation" / "common_voice_11_0"
    for split in ("train", "validation", "test"):
        _write_sounds(voices / split, "sentence")
    (voices / "README.md").write_text(_VOICES, encoding="utf-8")
    _write_detection(folder)
    _write_stable_diffusion(folder / "stable-diffusion-v1-5" / "stable-diffusion-v1-5")
    _write_captioned(folder)
    _write_codes(folder / "imagenet_code_c2i_flip_ten_crop")
    for number in range(16 * LINES):  # two batches of DINO's on each of 8 GPUs
        picture = folder / "many-images" / ("cat", "dog")[number % 2] / f"{number}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / f"conditioning_image_{number % 8}.png", picture)
    write_hook(folder / "few-codes", "dataset.imagenet", _FEW_CODES)
    _write_f5(folder / "F5-TTS" / "data" / "Emilia_ZH_EN_pinyin", folder / "sounds")


def _byte_words(words: int) -> dict[str, int]:
    """A vocabulary of so many words: bytes as byte-level tokenizers write them, and what no text uses."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = letters + [f"unused{number}" for number in range(words - len(letters))]
    return {word: number for number, word in enumerate(names)}


def _write_whisper(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    _write_json(folder / "config.json", _WHISPER)
    words = _byte_words(50257)
    _write_json(folder / "vocab.json", words)
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    tasks = ("translate", "transcribe", "startoflm", "startofprev", "nocaptions", "notimestamps")
    named = ["endoftext", "startoftranscript", *list(LANGUAGES)[:_LANGUAGES], *tasks]
    added = [f"<|{word}|>" for word in named] + [f"<|{number / 50:.2f}|>" for number in range(1501)]
    numbers = {word: number for number, word in enumerate(added, len(words))}
    _write_json(folder / "added_tokens.json", numbers)
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    tokens = {
        str(number): {"content": word, "special": True, "normalized": False, "lstrip": False, "rstrip": False}
        | {"single_word": False}
        for word, number in numbers.items()
    }
    settings = {"tokenizer_class": "WhisperTokenizer", "added_tokens_decoder": tokens, **special}
    _write_json(folder / "tokenizer_config.json", settings | {"model_max_length": 1024})
    extractor = {"feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "WhisperProcessor"}
    _write_json(folder / "preprocessor_config.json", extractor)
    generation = {
        "lang_to_id": {word: numbers[word] for word in added[2 : 2 + _LANGUAGES]},
        "task_to_id": {task: numbers[f"<|{task}|>"] for task in tasks[:2]},
        "no_timestamps_token_id": numbers["<|notimestamps|>"],
        "is_multilingual": True,
        "max_length": 448,
        **{key: value for key, value in _WHISPER.items() if key.endswith("_token_id")},
    }
    _write_json(folder / "generation_config.json", generation)


def _write_sounds(folder: Path, column: str, rate: int = _RATE) -> list[float]:
    """Tones of 2 to 12 seconds with what is said in them; their lengths in seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    lengths = [2 + 10 * number / LINES for number in range(LINES)]
    lines = [f"file_name,{column}"]
    for number, seconds in enumerate(lengths):
        tone = array("h", (int(9000 * math.sin(one / 9)) for one in range(int(seconds * rate))))
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(tone.tobytes())
        lines.append(f"{number}.wav,It is the number {number} and not another.")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return lengths


def _write_detection(folder: Path) -> None:
    """DETR as it was published, and pictures with boxes in CPPE-5's five categories."""
    from datasets import ClassLabel, Dataset, Features, Image, List, Value

    model = folder / "facebook" / "detr-resnet-50"
    model.mkdir(parents=True, exist_ok=True)
    _write_json(model / "config.json", _DETR)
    sizes = {"size": {"shortest_edge": 800, "longest_edge": 1333}, "format": "coco_detection"}
    _write_json(model / "preprocessor_config.json", {"image_processor_type": "DetrImageProcessor", **sizes})
    names = ["Coverall", "Face_Shield", "Gloves", "Goggles", "Mask"]
    boxes = {
        "id": List(Value("int64")),
        "area": List(Value("int64")),
        "bbox": List(List(Value("float32"), length=4)),
        "category": List(ClassLabel(names=names)),
    }
    features = Features(
        {"image_id": Value("int64"), "image": Image(), "width": Value("int32"), "height": Value("int32")}
        | {"objects": boxes}
    )
    data = folder / "cppe-5" / "data"
    data.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        rows = [
            {
                "image_id": number,
                "image": {"path": None, "bytes": _png(random.Random(number), 480, 320)},
                "width": 480,
                "height": 320,
                "objects": {
                    "id": [number],
                    "area": [200 * 100],
                    "bbox": [[20.0, 30.0, 200.0, 100.0]],
                    "category": [number % 5],
                },
            }
            for number in range(LINES)
        ]
        Dataset.from_list(rows, features=features).to_parquet(str(data / f"{split}-00000-of-00001.parquet"))


def _png(made_up: random.Random, width: int, height: int) -> bytes:
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.frombytes("RGB", (width, height), made_up.randbytes(width * height * 3)).save(file, "PNG")
    return file.getvalue()


def _write_stable_diffusion(folder: Path) -> None:
    """The parts of version 1.5, each in its folder, with CLIP's tokenizer."""
    for name, config in (("unet", _UNET), ("vae", _VAE), ("text_encoder", _CLIP_TEXT)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        _write_json(folder / name / "config.json", config)
    for name in ("tokenizer", "scheduler"):
        (folder / name).mkdir(exist_ok=True)
    _write_json(folder / "scheduler" / "scheduler_config.json", _NOISE)
    _write_json(folder / "model_index.json", {"_class_name": "StableDiffusionPipeline", **_PARTS})
    words = list(_byte_words(256))
    names = words + [f"{word}</w>" for word in words]
    names += [f"unused{number}" for number in range(49406 - len(names))]
    vocabulary = {word: number for number, word in enumerate([*names, "<|startoftext|>", "<|endoftext|>"])}
    _write_json(folder / "tokenizer" / "vocab.json", vocabulary)
    (folder / "tokenizer" / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    special = {"bos_token": "<|startoftext|>"} | dict.fromkeys(
        ("eos_token", "unk_token", "pad_token"), "<|endoftext|>"
    )
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, **special}
    _write_json(folder / "tokenizer" / "tokenizer_config.json", settings)
    for place in ("openai/clip-vit-large-patch14",):  # of which kohya's scripts take the tokenizer
        shutil.copytree(folder / "tokenizer", folder.parent.parent / place, dirs_exist_ok=True)


def _write_captioned(folder: Path) -> None:
    """Pictures with conditions for ControlNet, as fill50k has them, and with captions for kohya's scripts."""
    from datasets import Dataset, Features, Image, Value

    pictures = [_png(random.Random(number), 512, 512) for number in range(8)]
    data = folder / "fusing" / "fill50k"
    data.mkdir(parents=True, exist_ok=True)
    features = Features({"image": Image(), "conditioning_image": Image(), "text": Value("string")})
    one = [{"path": None, "bytes": picture} for picture in pictures]
    rows = [
        {"image": one[number % 8], "conditioning_image": one[-1], "text": f"circle {number}"}
        for number in range(LINES)
    ]
    Dataset.from_list(rows, features=features).to_parquet(str(data / "train.parquet"))
    captioned = folder / "captioned"
    captioned.mkdir(exist_ok=True)
    for number, picture in enumerate(pictures):
        (folder / f"conditioning_image_{number}.png").write_bytes(picture)
        (captioned / f"{number}.png").write_bytes(picture)
        (captioned / f"{number}.txt").write_text(f"circle {number}", encoding="utf-8")
    (folder / "my_dataset_config.toml").write_text(_KOHYA, encoding="utf-8")


def _write_codes(folder: Path) -> None:
    """Codes of pictures as LlamaGen's extract_codes_c2i.py writes them: of ten crops and their mirrors."""
    import numpy

    for name, codes in (
        ("imagenet384_codes", numpy.zeros((1, 20, 24 * 24), numpy.int64)),
        ("imagenet384_labels", numpy.zeros((1,), numpy.int64)),
    ):
        (folder / name).mkdir(parents=True, exist_ok=True)
        numpy.save(folder / name / "0.npy", codes)
        for number in range(1, 512):
            shutil.copy(folder / name / "0.npy", folder / name / f"{number}.npy")


def _write_f5(folder: Path, sounds: Path) -> None:
    """Sounds and what is said in them, as F5-TTS's prepare_csv_wavs.py leaves them."""
    from datasets.arrow_writer import ArrowWriter

    lengths = _write_sounds(sounds, "text", rate=24000)
    folder.mkdir(parents=True, exist_ok=True)
    with ArrowWriter(path=str(folder / "raw.arrow")) as file:
        for number in range(8 * LINES):
            one = number % LINES
            place = str(sounds / f"{one}.wav")
            line = {"audio_path": place, "text": f"It is {one}.", "duration": lengths[one]}
            file.write(line)
        file.finalize()
    _write_json(folder / "duration.json", {"duration": lengths * 8})


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")
