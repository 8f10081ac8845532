"""Sources of a config.json, and the errors if there is none."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests import processes, work
from zerokit.errors import ModelError
from zerokit.models import hub_config, load_model_shape

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}
PARAMETERS = 2 * 300 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 100 + 2 * 64) + 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache."""
    root = tmp_path / "cache"
    root.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(root))
    return root


def put_into_cache(cache: Path, name: str, config: Any, *, commit: str = "abc", branch: str = "main") -> None:
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / branch).write_text(commit)
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "snapshots" / commit / "config.json").write_text(json.dumps(config))


def complaint(model: Any, **options: Any) -> ModelError:
    options = {"allow_network": False, "allow_torch": False, **options}
    with pytest.raises(ModelError) as caught:
        load_model_shape(model, **options)
    assert caught.value.where
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_folder_a_file_and_parsed_keys(folder: Path) -> None:
    for model in (folder, str(folder), folder / "config.json", LLAMA):
        shape = load_model_shape(model, allow_network=False)
        assert shape.num_parameters == PARAMETERS
        assert shape.config == LLAMA


def test_the_home_folder_is_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert load_model_shape(f"~/{folder.name}").num_parameters == PARAMETERS


def test_a_folder_comes_before_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.chdir(tmp_path)
    assert load_model_shape("gpt2").model_type == "llama"


def test_the_cache_needs_no_network(cache: Path) -> None:
    put_into_cache(cache, "someone/model", LLAMA)
    shape = load_model_shape("someone/model", allow_network=False)
    assert shape.num_parameters == PARAMETERS
    assert shape.name == "someone/model"


def test_a_revision_is_looked_for_by_branch_and_by_commit(cache: Path) -> None:
    put_into_cache(cache, "someone/model", LLAMA, commit="abc", branch="v2")
    for revision in ("v2", "abc"):
        assert load_model_shape("someone/model", revision=revision, allow_network=False)
    complaint("someone/model", revision="v3")
    complaint("openai-community/gpt2", revision="main")


@pytest.mark.torch
@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_the_cache_is_where_huggingface_hub_has_it(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    code = "from huggingface_hub.constants import HF_HUB_CACHE as c; print(c)"
    cache = Path(processes.checked([sys.executable, "-c", code]).strip())
    put_into_cache(cache, "someone/model", LLAMA)
    assert hub_config.cached_config("someone/model") == (
        cache / "models--someone--model" / "snapshots" / "abc" / "config.json"
    )


@pytest.mark.torch
def test_a_download_takes_the_config_alone(cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def download(name: str, file: str, *, revision: str | None) -> str:
        requests.append((name, file, revision))
        return str(folder / file)

    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [])
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda url, timeout: requests.append(url))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert load_model_shape("someone/model", revision="v1").num_parameters == PARAMETERS
    url = "https://huggingface.co/someone/model/resolve/v1/config.json"
    assert requests == [url, ("someone/model", "config.json", "v1")]


@pytest.mark.torch
def test_without_network_one_line_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: Any, **__: Any) -> None:
        raise OSError("no route to the Hub\nsecond line")

    def download(*_: Any, **__: Any) -> str:
        raise AssertionError("a download tries again and again")

    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [])
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", ask)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    error = complaint("someone/model", allow_network=True)
    assert "no route to the Hub" in str(error)
    assert "second line" not in str(error)


@pytest.mark.torch
@pytest.mark.parametrize("silent", ["socket.getaddrinfo", "huggingface_hub.get_hf_file_metadata"])
def test_a_resolver_or_a_hub_that_never_answers_is_left_behind(
    silent: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [])
    monkeypatch.setattr(silent, lambda *_, **__: answered.wait())
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.01")
    assert "no answer in 0.01 s" in str(complaint("someone/model", allow_network=True))
    answered.set()


@pytest.mark.torch
@pytest.mark.parametrize("proxy", [False, True])
def test_the_hub_has_10_seconds_and_its_name_2_which_a_proxy_looks_up(
    proxy: bool, cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[object] = []

    class Noting(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            limits.append(timeout)
            super().join(timeout)

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    if proxy:
        monkeypatch.setenv("HTTPS_PROXY", "http://10.0.0.1:3128")
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.getaddrinfo", lambda host, _: limits.append(host))
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda url, timeout: limits.append(timeout))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: str(folder / "config.json"))
    monkeypatch.setattr("zerokit.models.hub_config.threading.Thread", Noting)
    assert hub_config.download_config("someone/model") == folder / "config.json"
    assert limits == [*(["huggingface.co"] * (not proxy)), 2.0, 10.0, 10.0]


@pytest.mark.torch
def test_a_misspelled_name_sends_no_request_to_the_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise AssertionError("requests")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert complaint("llama-3.1-71b", allow_network=True).hint == "Did you mean 'llama-3.1-70b'?"


def test_no_model_is_suggested_that_only_shares_some_letters(cache: Path) -> None:
    assert "zerokit models" in str(complaint("nomodel").hint)


@pytest.mark.parametrize(
    "name", ["", "  ", "no/such/folder/at/all", "/no/such/folder", "./no", "~nobody/x", "x\0y", "x" * 5000, "a b"]
)
def test_what_can_be_no_model(name: str, cache: Path) -> None:
    complaint(name)


def test_a_hub_id_that_is_nowhere(cache: Path) -> None:
    assert "meta-llama/Llama-3.1-70B" in str(complaint("meta-llama/Lama-3.1-70B"))
    assert "neither" in str(complaint("someone/nothing"))
    for count in ("7.5B", "7bn", "-7B", "nan"):
        assert f"'{count}' looks like a number of parameters" in str(complaint(count))


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    assert "has no config.json" in str(complaint(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "peft adapter" in str(complaint(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "[]",
        "3",
        "null",
        '"llama"',
        "{",
        '{"model_type": "llama",}',
        "{'model_type': 'llama'}",
        "[" * 100_000,
        '{"model_type": "llama"} x',
        "not json",
        "\x00\x01",
    ],
)
def test_a_file_that_is_no_config(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    assert str(file) in str(complaint(file))


def test_a_file_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    complaint(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"\xff")
    complaint(tmp_path / "weights.bin")
    complaint(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"zero_optimization": {"stage": 3}}, "ds_config"),
        ({"train_micro_batch_size_per_gpu": 1}, "ds_config"),
        ({"peft_type": "LORA"}, "peft adapter"),
        ({"hidden_size": 64}, "'model_type' is missing"),
        ({}, "'model_type' is missing"),
    ],
)
def test_another_kind_of_file(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert words in str(complaint(tmp_path))


def test_what_transformers_reads_is_read(tmp_path: Path) -> None:
    """NaN, Infinity and a key that appears twice: not JSON, but in configs of the Hub."""
    text = json.dumps(LLAMA)[:-1]
    (tmp_path / "config.json").write_text(text + ', "time_step_limit": [0.0, Infinity], "vocab_size": 300}')
    assert load_model_shape(tmp_path).num_parameters == PARAMETERS
    (tmp_path / "config.json").write_text(text + ', "x": NaN, "hidden_size": 0}')
    assert "config.json (hidden_size)" in str(complaint(tmp_path))


def test_errors_name_the_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{\n  "model_type": "llama",\n  "hidden_size": "big"\n}')
    error = complaint(tmp_path)
    assert error.where == f"{tmp_path}/config.json:3 (hidden_size)"
    assert error.message == "'hidden_size' is \"big\""


def test_errors_of_the_catalogue_and_of_parsed_keys_have_a_place() -> None:
    assert complaint({"model_type": "llama", "hidden_size": 0}).where == "config.json (hidden_size)"
    assert complaint("gpt2", architecture="GPT3").where == "architecture"


def test_an_architecture_that_zerokit_does_not_count() -> None:
    assert complaint(LLAMA, architecture="LlamaForCausalLm").hint == "Did you mean 'LlamaForCausalLM'?"


def test_the_architecture_that_the_config_names() -> None:
    named = {**LLAMA, "architectures": ["LlamaForSequenceClassification"], "num_labels": 1}
    assert load_model_shape(named).num_parameters == PARAMETERS - 300 * 64 + 64
    assert load_model_shape({**LLAMA, "architectures": ["LlamaModel"]}).num_parameters == PARAMETERS - 300 * 64
    assert load_model_shape(named, architecture="LlamaForCausalLM").num_parameters == PARAMETERS
    assert load_model_shape({**LLAMA, "architectures": ["LlamaForX", 3]}).architecture == "LlamaForCausalLM"
    complaint({**LLAMA, "architectures": "LlamaModel"})


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({}, None),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"dtype": "float32", "torch_dtype": "float16"}, "float32"),
        ({"dtype": None, "torch_dtype": "torch.float16"}, "float16"),
    ],
)
def test_the_type_that_weights_were_saved_in(keys: dict[str, Any], dtype: str | None) -> None:
    assert load_model_shape({**LLAMA, **keys}).dtype == dtype


@pytest.mark.torch
def test_the_type_in_the_text_section() -> None:
    gemma = {"model_type": "gemma3", "text_config": {"torch_dtype": "bfloat16"}}
    assert load_model_shape(gemma).dtype == "bfloat16"


@pytest.mark.parametrize(
    "code",
    [
        "load_model_shape('llama-3.1-70b')",
        "load_model_shape('gemma-3-27b')",
        "load_model_shape({'model_type': 'bert'})",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    check = (
        f"import sys; from zerokit.models import load_model_shape; {code}; "
        "assert not {'torch', 'transformers', 'huggingface_hub', 'pydantic', 'yaml'} & set(sys.modules)"
    )
    processes.checked([sys.executable, "-c", check])


def test_loading_is_little_work() -> None:
    """A config.json of 80 layers is counted by kinds of layers; with 1,900 calls it is some milliseconds."""
    assert work.calls_in(lambda: load_model_shape("llama-3.1-70b")) < 6_000
