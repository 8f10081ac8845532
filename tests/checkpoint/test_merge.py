"""An adapter that is merged gives the weights that peft gives; what cannot be merged is named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from tests.checkpoint.small import save_checkpoint
from tests.cli import conftest
from tests.tiny import tiny_llama, tiny_tokenizer
from zerokit.checkpoint.checksums import check_checksums, read_checksums
from zerokit.checkpoint.compare import compare
from zerokit.checkpoint.merge import merge
from zerokit.errors import CheckpointError, ZerokitError

zerokit = conftest.zerokit


def adapt(folder: Path, dtype: torch.dtype = torch.float32, *, ia3: bool = False, **settings: Any) -> Path:
    """Save a model into `folder`/model, and an adapter with a tokenizer, whose folder this gives."""
    torch.manual_seed(1)
    tied = settings.pop("tied", None)
    if settings.pop("gpt2", False):
        GPT2LMHeadModel(GPT2Config(vocab_size=320, n_embd=32, n_layer=1, n_head=2)).save_pretrained(folder / "model")
    else:
        tiny_llama(folder / "model", tie_word_embeddings=bool(tied))
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=dtype)
    if tied:
        file = folder / "model/model.safetensors"
        tensors = load_file(file)
        again = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()} if tied == "twice" else {}
        save_file(tensors | again, file)
    else:
        base.save_pretrained(folder / "model", max_shard_size="100KB")
    config = peft.IA3Config if ia3 else peft.LoraConfig
    model = peft.get_peft_model(base, config(task_type="CAUSAL_LM", **settings))
    for name, parameter in model.named_parameters():
        # Embeddings with LoRA beside them are saved as they are now: other tokens may have been added.
        if any(word in name for word in (".lora_", ".ia3_", "modules_to_save", "embed_tokens.base_layer")):
            torch.nn.init.normal_(parameter, 1.0 if "magnitude" in name or ia3 else 0.0, std=0.05)
    model.save_pretrained(folder / "adapter")
    tiny_tokenizer(folder / "adapter")
    return folder / "adapter"


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize(
    ("dtype", "settings"),
    [
        (torch.float32, {"target_modules": ["q_proj", "embed_tokens"], "modules_to_save": ["lm_head"]}),
        (
            torch.bfloat16,
            {
                "target_modules": "all-linear",
                "use_rslora": True,
                "rank_pattern": {"q_proj": 3},
                "alpha_pattern": {"layers.1.mlp.up_proj": 5},
            },
        ),
        (torch.float16, {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "gpt2": True}),
        (torch.float32, {"target_modules": ["q_proj", "up_proj"], "use_dora": True}),
        (torch.float16, {"target_modules": ["c_attn"], "use_dora": True, "fan_in_fan_out": True, "gpt2": True}),
        (torch.bfloat16, {"ia3": True, "modules_to_save": ["lm_head"]}),
        (torch.float32, {"ia3": True, "fan_in_fan_out": True, "gpt2": True}),
        (torch.float32, {"target_modules": ["lm_head"], "tied": "once"}),
        (torch.float32, {"target_modules": ["lm_head"], "tied": "twice"}),
        (torch.float32, {"target_modules": ["embed_tokens"], "tied": "twice"}),
        (torch.float32, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "tied": "twice"}),
    ],
    ids=[
        *("fp32", "bf16", "fp16 turned", "DoRA", "DoRA turned", "IA3", "IA3 turned, with biases"),
        *("tied head", "tied head, saved twice", "tied embeddings, saved twice", "untied by the adapter"),
    ],
)
def test_the_weights_are_those_of_peft(
    dtype: torch.dtype, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerokit.checkpoint.adapter_deltas.BLOCK_ELEMENTS", 1000)
    adapter = adapt(tmp_path, dtype, **settings)
    merge(adapter, tmp_path / "ours")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=dtype)
    whole: Any = peft.PeftModel.from_pretrained(base, adapter).merge_and_unload()
    theirs = whole.state_dict()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype="auto")
    assert merged.dtype == dtype
    assert merged.config.tie_word_embeddings == whole.config.tie_word_embeddings
    ours, before = merged.state_dict(), weights_in(tmp_path / "model")
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=2 * torch.finfo(dtype).eps, atol=1e-7, msg=name)
        if name in before and not any(word in name for word in ("proj", "c_attn", "embed", "lm_head")):
            assert torch.equal(tensor, before[name])
    assert any(not torch.equal(tensor, before[name]) for name, tensor in ours.items() if name in before)
    files = {file.name for file in (tmp_path / "ours").iterdir()}
    assert {"config.json", "SHA256SUMS", "tokenizer.json"} <= files
    assert not {"adapter_config.json", ".lock"} & files


def in_folders(model: Path) -> None:
    """Have each shard lie in a folder of its own, all with one name."""
    index = model / "model.safetensors.index.json"
    found = json.loads(index.read_text())
    shards = sorted(set(found["weight_map"].values()))
    assert len(shards) > 2
    moved = {shard: f"part/{number}/model.safetensors" for number, shard in enumerate(shards)}
    for shard, new in moved.items():
        (model / new).parent.mkdir(parents=True)
        (model / shard).rename(model / new)
    found["weight_map"] = {name: moved[shard] for name, shard in found["weight_map"].items()}
    index.write_text(json.dumps(found))


def test_shards_of_one_name_in_several_folders_are_all_merged(tmp_path: Path, zerokit: conftest.Run) -> None:
    adapter = adapt(tmp_path, target_modules=["q_proj"])
    merge(adapter, tmp_path / "expected")
    in_folders(tmp_path / "model")
    merge(adapter, tmp_path / "ours")
    expected, ours = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("expected", "ours")
    )
    assert all(torch.equal(ours[name], tensor) for name, tensor in expected.items())
    check_checksums(tmp_path / "ours", read_checksums(tmp_path / "ours") or {})
    assert zerokit("checkpoint", "diff", tmp_path / "expected", tmp_path / "ours")[0] == 0
    assert zerokit("checkpoint", "diff", tmp_path / "model", tmp_path / "ours")[0] == 1


def test_a_shard_outside_of_the_model_is_refused(once: Path, tmp_path: Path) -> None:
    shutil.copytree(once, tmp_path / "once")
    index = tmp_path / "once/model/model.safetensors.index.json"
    found = json.loads(index.read_text())
    name, shard = found["weight_map"].popitem()
    shutil.copy(tmp_path / "once/model" / shard, tmp_path / "once/stray.safetensors")
    found["weight_map"][name] = "../stray.safetensors"
    index.write_text(json.dumps(found))
    with pytest.raises(ZerokitError, match=r"names '\.\./stray\.safetensors', which is outside its folder"):
        merge(tmp_path / "once/adapter", tmp_path / "ours", base=tmp_path / "once/model")
    assert [path.name for path in tmp_path.iterdir()] == ["once"]


@pytest.fixture
def hub(once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the Hub, with two revisions of org/model; an adapter of the older one, in `tmp_path`."""
    repository = tmp_path / "cache/models--org--model"
    for branch, commit in (("main", "1" * 40), ("v1", "2" * 40)):
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / branch).write_text(commit)
        shutil.copytree(once / "model", repository / "snapshots" / commit)
    tiny_llama(tmp_path / "newer", seed=1).save_pretrained(
        repository / "snapshots" / ("1" * 40), max_shard_size="100KB"
    )
    shutil.copytree(once / "adapter", tmp_path / "adapter")
    config = tmp_path / "adapter/adapter_config.json"
    settings = {**json.loads(config.read_text()), "base_model_name_or_path": "org/model", "revision": "v1"}
    config.write_text(json.dumps(settings))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


@pytest.mark.parametrize("base", [None, Path("org/model")])
def test_an_adapter_is_merged_into_the_revision_that_it_names(base: Path | None, hub: Path, once: Path) -> None:
    merge(once / "adapter", hub / "expected", base=once / "model")
    done = merge(hub / "adapter", hub / "ours", base=base)
    assert done.base.name == "2" * 40
    assert list(compare(hub / "expected", hub / "ours")) == []


@pytest.mark.parametrize(
    ("revision", "message"),
    [
        ("v9", "'org/model' is no local folder, and the Hub did not give its revision 'v9': "),
        (5, "has revision: 5, which is no string. Save it again"),
    ],
)
def test_a_revision_that_is_not_there_is_named(revision: Any, message: str, hub: Path) -> None:
    config = hub / "adapter/adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "revision": revision}))
    with pytest.raises(ZerokitError) as caught:
        merge(hub / "adapter", hub / "ours")
    assert message in str(caught.value)
    assert not (hub / "ours").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.update(peft_type="VERA"), "is of the unsupported kind VERA. Merge it with peft"),
        (
            lambda found: found.update(peft_type="P_TUNING"),
            "has learned tokens (P_TUNING), which cannot be merged into weights. Load both with peft",
        ),
        (lambda found: found.update(bias="all"), 'has bias: "all", which zerokit does not merge'),
        (lambda found: found.update(init_lora_weights="pissa"), 'has init_lora_weights: "pissa", which'),
        (lambda found: found.update(a_new_kind={"x": 1}), 'has a_new_kind: {"x": 1}, which zerokit does not'),
        (lambda found: found.update(base_model_name_or_path=None), "does not name its model"),
        (lambda found: found.update(base_model_name_or_path="/nowhere/model"), "no such model folder"),
        (lambda found: found.update(alpha_pattern={"(": 1}), "has a malformed alpha_pattern"),
        (lambda found: found.update(lora_alpha="much"), "has lora_alpha 'much' and rank 8"),
    ],
)
def test_an_adapter_that_is_more_than_two_matrices_is_named(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path, once: Path
) -> None:
    shutil.copytree(once / "adapter", tmp_path / "adapter")
    file = tmp_path / "adapter/adapter_config.json"
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))
    with pytest.raises(ZerokitError) as caught:
        merge(tmp_path / "adapter", tmp_path / "ours")
    assert message in str(caught.value)
    assert caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.popitem(), "has no pair of matrices for 'model."),
        (lambda found: found.update({"base_model.model.other.weight": torch.ones(2)}), "has 'other.weight', which"),
        (
            lambda found: found.update({"base_model.model.model.norm.weight": torch.ones(2)}),
            "has [2] for 'model.norm.weight', which is [64] of float32 in",
        ),
        (
            lambda found: found.update({"base_model.model.model.norm.weight": torch.ones(64).int()}),
            "of int32. Save it again",
        ),
        (lambda found: found.clear(), "has no weights"),
    ],
)
def test_an_adapter_that_does_not_fit_is_named(
    change: Callable[[dict[str, torch.Tensor]], object], message: str, tmp_path: Path, once: Path
) -> None:
    shutil.copytree(once / "adapter", tmp_path / "adapter")
    file = tmp_path / "adapter/adapter_model.safetensors"
    found = load_file(file)
    change(found)
    save_file(found, file)
    with pytest.raises(CheckpointError) as caught:
        merge(tmp_path / "adapter", tmp_path / "ours")
    assert message in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


@pytest.mark.parametrize("name", ["model.embed_tokens", "lm_head"])
def test_a_weight_that_is_tied_and_replaced_is_refused(name: str, once: Path, tmp_path: Path) -> None:
    shutil.copytree(once, tmp_path / "tied")
    tiny_llama(tmp_path / "tied/model", tie_word_embeddings=True)
    for file in (tmp_path / "tied/model").glob("model-*"):
        file.unlink()
    (tmp_path / "tied/model/model.safetensors.index.json").unlink()
    file = tmp_path / "tied/adapter/adapter_model.safetensors"
    save_file(load_file(file) | {f"base_model.model.{name}.weight": torch.ones(320, 64)}, file)
    with pytest.raises(CheckpointError, match=r"whole \(modules_to_save\), which the model ties to another"):
        merge(tmp_path / "tied/adapter", tmp_path / "ours", base=tmp_path / "tied/model")


@pytest.mark.parametrize("has_checkpoint", [True, False])
@pytest.mark.parametrize(
    ("empty", "message"),
    [
        (
            "base_model.model.lm_head.weight",
            "1 weights of modules_to_save are empty, such as 'base_model.model.lm_head.weight': they were "
            "saved from ZeRO-3 without being gathered.*peft 0.15.1 or later",
        ),
        (
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
            "1 weights of the adapter are empty, such as .*q_proj.lora_A.weight'.*before save_pretrained",
        ),
    ],
)
def test_an_adapter_with_empty_weights_is_named_and_not_its_model(
    empty: str, message: str, has_checkpoint: bool, once: Path, tmp_path: Path, zerokit: conftest.Run
) -> None:
    adapter = shutil.copytree(once / "adapter", tmp_path / "adapter")
    file = adapter / "adapter_model.safetensors"
    save_file(load_file(file) | {empty: torch.ones(0)}, file)
    if has_checkpoint:
        save_checkpoint(adapter / "global_step4")
    code, _, err = zerokit("checkpoint", "merge", adapter, "-o", tmp_path / "new")
    assert code == 2
    assert re.search(message, err)
    source = f"{adapter}/global_step4, which has them" if has_checkpoint else "its DeepSpeed checkpoint"
    assert f"'zerokit checkpoint export' on {source}, and use what it writes" in err
    assert "--base" not in err


def test_the_command_says_what_was_merged(once: Path, tmp_path: Path, zerokit: conftest.Run) -> None:
    code, out, _ = zerokit("checkpoint", "merge", once / "adapter", "-o", tmp_path / "new", "--format", "json")
    report = json.loads(out)
    assert (code, report["num_merged"], report["num_replaced"]) == (0, 2, 0)
    code, _, err = zerokit("checkpoint", "merge", once / "model", "-o", tmp_path / "other")
    assert (code, "has no adapter_config.json. Name the folder of an adapter" in err) == (2, True)
    code, _, err = zerokit("checkpoint", "merge", once / "adapter", "-o", tmp_path / "new")
    assert (code, "exists. Name a folder that does not exist yet" in err) == (2, True)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and an adapter."""
    folder = tmp_path_factory.mktemp("once")
    adapt(folder, target_modules=["q_proj"])
    return folder
