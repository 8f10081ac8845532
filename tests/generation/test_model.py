import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import tiny_llama
from zerokit.errors import ModelError
from zerokit.generation.model import ModelFiles, find_model, load_model, read_model
from zerokit.generation.options import Options


def options(folder: Path | str) -> Options:
    return Options(model=str(folder), texts=("x",))


def set_config(folder: Path, **keys: object) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **keys}), encoding="utf-8")


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def test_a_good_folder(model: ModelFiles) -> None:
    assert (model.vocab_size, model.max_positions) == (320, 256)
    assert model.defaults.eos_token_id == 0


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such model folder"):
        find_model(options(tmp_path / "none"))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json:1"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
        (pickled, "only pickled weights"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x10"), "damaged or cut short"),
        (without_tokenizer, "has no tokenizer"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "no tokenizer can be loaded"),
        (lambda folder: (folder / "generation_config.json").write_text("{"), "generation_config.json"),
        (lambda folder: set_config(folder, model_type="unheard-of"), "`unheard-of`"),
        (lambda folder: set_config(folder, intermediate_size=96), "but config.json gives"),
        (lambda folder: set_config(folder, model_type="t5"), "not a causal language model"),
    ],
)
def test_what_is_wrong_is_named(
    model_folder: Path, tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    spoil(folder)
    with pytest.raises(ModelError) as caught:
        read_model(folder, options(folder))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.torch
@pytest.mark.parametrize("targets", [["q_proj", "down_proj"], ["embed_tokens", "q_proj"], ["lm_head"]], ids=str)
def test_a_merged_adapter_is_a_plain_model_with_the_same_scores(
    targets: list[str], model_folder: Path, tmp_path: Path
) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = tmp_path / "base"
    shutil.copytree(model_folder, base)
    tiny_llama(base, tie_word_embeddings="down_proj" not in targets)
    plain = AutoModelForCausalLM.from_pretrained(base)
    torch.manual_seed(1)  # some adapters round more
    config = LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
    get_peft_model(plain, config).save_pretrained(tmp_path, save_embedding_layers=False)
    files = read_model(base, options(tmp_path))
    layers, merged = (
        load_model(files, torch.float32, trust_remote_code=False, merges=is_so) for is_so in (False, True)
    )
    assert any("lora" in name for name, _ in layers.named_modules())
    assert not any("lora" in name for name, _ in merged.named_modules())
    ids = torch.arange(2, 30)[None]
    torch.testing.assert_close(merged(ids).logits, layers(ids).logits)
    assert not torch.allclose(merged(ids).logits, AutoModelForCausalLM.from_pretrained(base)(ids).logits)


@pytest.mark.torch
def test_an_adapter_that_cannot_be_merged(model_folder: Path, tmp_path: Path) -> None:
    import torch
    from peft import AdaptionPromptConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = AdaptionPromptConfig(adapter_len=2, adapter_layers=1, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(model_folder), config).save_pretrained(tmp_path)
    files = read_model(model_folder, options(tmp_path))
    load_model(files, torch.float32, trust_remote_code=False)
    with pytest.raises(ModelError, match="peft cannot merge it into the weights, as --mode tensor"):
        load_model(files, torch.float32, trust_remote_code=False, merges=True)


def save_adapter(base: Path, folder: Path, config: Any, rename: Callable[[str], str] | None = None) -> None:
    """An adapter of a model, perhaps with other names for its weights."""
    from peft import get_peft_model
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)
    if rename is not None:
        file = folder / "adapter_model.safetensors"
        save_file({rename(name): tensor for name, tensor in load_file(file).items()}, file)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("layers", "rename", "message"),
    [
        (
            2,
            lambda name: name.replace("base_model.model.model.", "model."),
            "has 'model.layers.0.self_attn.q_proj.lora_A.weight'",
        ),
        (2, lambda name: name.replace("layers.1.", "blocks.1."), "has 'base_model.model.model.blocks.1.self_attn."),
        (4, None, "has 'base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight', which '{base}' lacks"),
        (1, None, "lacks 'base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight', which '{base}' needs"),
        (2, lambda name: name.replace("lm_head", "head"), "cannot load it on '{base}': 'base_model.model.lm_head"),
    ],
)
def test_an_adapter_of_another_model(
    layers: int, rename: Callable[[str], str] | None, message: str, model_folder: Path, tmp_path: Path
) -> None:
    import torch
    from peft import LoraConfig

    shutil.copytree(model_folder, other := tmp_path / "other")
    tiny_llama(other, num_hidden_layers=layers)
    config = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    save_adapter(other, tmp_path / "adapter", config, rename)
    files = read_model(model_folder, options(tmp_path / "adapter"))
    for merges in (False, True):
        with pytest.raises(ModelError) as caught:
            load_model(files, torch.float32, trust_remote_code=False, merges=merges)
        assert message.format(base=model_folder) in str(caught.value)
        assert caught.value.hint == "Check that it belongs to this model"


ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dora": ("Lora", {"target_modules": ["q_proj", "embed_tokens"], "use_dora": True, "bias": "all"}),
    "embeddings": ("Lora", {"target_modules": ["q_proj", "lm_head"]}),
    "tokens": ("Lora", {"target_modules": ["q_proj"], "trainable_token_indices": [3, 4]}),
    "head": ("Lora", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "norm"]}),
    "ia3": ("IA3", {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
    "adalora": ("AdaLora", {"target_modules": ["q_proj"], "total_step": 9, "tinit": 1, "tfinal": 1}),
    "vera": ("Vera", {"target_modules": ["q_proj"], "save_projection": False}),
    "vera with projections": ("Vera", {"target_modules": ["q_proj"]}),
    "randlora": ("RandLora", {"target_modules": ["q_proj"]}),
    "loha": ("LoHa", {"target_modules": ["q_proj"]}),
    "lokr": ("LoKr", {"target_modules": ["q_proj"]}),
    "oft": ("OFT", {"target_modules": ["q_proj"], "oft_block_size": 4}),
    "vblora": ("VBLoRA", {"target_modules": ["q_proj"], "vector_length": 8, "num_vectors": 4, "r": 2}),
    "prompts": ("PromptTuning", {"num_virtual_tokens": 3, "task_type": "CAUSAL_LM"}),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("is_tied", [False, True])
def test_adapters_of_all_kinds_are_complete(name: str, is_tied: bool, model_folder: Path, tmp_path: Path) -> None:
    import peft
    import torch

    kind, keys = ADAPTERS[name]
    shutil.copytree(model_folder, base := tmp_path / "base")
    tiny_llama(base, tie_word_embeddings=is_tied)
    save_adapter(base, tmp_path / "adapter", getattr(peft, f"{kind}Config")(**keys))
    load_model(read_model(base, options(tmp_path / "adapter")), torch.float32, trust_remote_code=False)
