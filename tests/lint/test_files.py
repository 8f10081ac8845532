import io
import json
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.json_data import load_json
from zerokit.documents import MAX_BYTES, parse_yaml, read_document
from zerokit.errors import DocumentError
from zerokit.lint.files import check_file, files_in, read_file

ROWS = load_json("lint/test_files.json")

DS: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 2
num_processes: 8
"""


def write(folder: Path, name: str, content: Any) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def refusal(file: Path) -> str:
    with pytest.raises(DocumentError) as caught:
        read_file(file)
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("content", "what"), ROWS["files_of_another_kind_are_recognised"])
def test_files_of_another_kind_are_recognised(tmp_path: Path, content: Any, what: str) -> None:
    message = refusal(write(tmp_path, "a.json", content))
    assert what in message
    assert str(tmp_path) in message


@pytest.mark.parametrize("content", ROWS["what_may_be_a_ds_config_is_taken_for_one"])
def test_what_may_be_a_ds_config_is_taken_for_one(tmp_path: Path, content: Any) -> None:
    assert read_file(write(tmp_path, "a.json", content)).data == content


def test_the_yaml_of_accelerate_is_routed_to_its_own_rules(tmp_path: Path) -> None:
    for name in ("default_config.yaml", "config.yml", "default_config"):
        document = read_file(write(tmp_path, name, ACCELERATE))
        assert document.data["num_processes"] == 8
        assert check_file(document).ok
    in_json = read_file(write(tmp_path, "a.json", {"distributed_type": "DEEPSPEED", "deepspeed_config": {}}))
    assert all(finding.rule != "unknown-key" for finding in check_file(in_json).findings)


def test_a_ds_config_in_yaml_is_checked_and_distinguished_from_json(tmp_path: Path) -> None:
    document = read_file(write(tmp_path, "ds.yaml", "zero_optimization:\n  stag: 2\n"))
    found = {(finding.rule, finding.line) for finding in check_file(document).findings}
    assert {("not-plain-json", 1), ("unknown-key", 2)} <= found
    assert refusal(write(tmp_path, "r.yaml", "model: gpt2\ndata:\n  train: x\n"))


def test_json_is_read_as_json_whatever_it_is_called(tmp_path: Path) -> None:
    text = '{"train_batch_size": "8", "zero_optimization": {"stage": 2}}'
    document = read_file(write(tmp_path, "ds.yaml", text))
    found = {(finding.rule, bool(finding.fix)) for finding in check_file(document).findings}
    assert ("wrong-type", True) in found  # a number in quotes is none in JSON
    assert "not-plain-json" not in {rule for rule, _ in found}
    assert read_file(write(tmp_path, "flow.yaml", "{train_batch_size: 8}")).is_yaml


@pytest.mark.parametrize("name", ["ds_config", "ds.cfg", "ds.hjson", "ds.json.template", "DS.JSON"])
def test_the_name_of_a_file_does_not_matter_as_it_does_not_to_deepspeed(tmp_path: Path, name: str) -> None:
    assert read_file(write(tmp_path, name, '{"train_batch_size": 8, // all\n}')).data == {"train_batch_size": 8}


NEOX = """{
  # parallelism
  "pipe-parallel-size": 1, "model-parallel-size": 1,
  "num-layers": 12, "train-iters": 100, "pos-emb": "rotary",
  "zero_optimization": {"stage": 1}, "gradient_clipping": 1.0
}"""


def test_files_of_other_programs_that_hold_keys_of_deepspeed(tmp_path: Path) -> None:
    neox = write(tmp_path, "neox.yml", NEOX)
    assert "is a config of GPT-NeoX, not a ds_config" in refusal(neox)
    write(tmp_path, "neox.json", NEOX)
    (error,) = files_in([tmp_path])
    assert isinstance(error, DocumentError)
    for text in ('{"train_batch_size": {{ batch }}}', '{"fp16": {% if fp16 %}{}{% endif %}}'):
        assert "is a template with words to be filled in" in refusal(write(tmp_path, "t.json", text))
    assert "is a template" not in refusal(write(tmp_path, "t.json", '{"fp16": {{"enabled": true}}'))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(content: bytes) -> Any:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        return read_file(Path("-"))

    assert read(b'{"train_batch_size": 8}').name == "<stdin>"
    assert read(ACCELERATE.encode()).data == parse_yaml(ACCELERATE).data


def test_folders_give_what_looks_like_a_ds_config(tmp_path: Path) -> None:
    meant = [
        write(tmp_path, "a.json", DS),
        write(tmp_path, "b/accelerate.json", {"distributed_type": "DEEPSPEED", "deepspeed_config": {}}),
        write(tmp_path, "b/broken.json", '{"zero_optimization": {'),
        write(tmp_path, "b/c/comment.JSON", '{"bf16": {"enabled": true}, // on\n}'),
        write(tmp_path, "b/c/launch.yml", ACCELERATE),
    ]
    for name, content in (
        ("config.json", {"model_type": "llama"}),
        ("b/list.json", [DS]),
        ("b/broken_other.json", "{"),
        ("fsdp.yaml", "distributed_type: FSDP\nfsdp_config: {}\nmixed_precision: bf16\n"),
        ("config_qwen.json", {"bf16": True, "fp16": False, "model_type": "qwen", "hidden_size": 8}),
        ("sft.json", {"bf16": True, "deepspeed": "ds.json", "output_dir": "out", "learning_rate": 1}),
        ("axolotl.yaml", "base_model: a\ndatasets: []\ndeepspeed: ds.json\nbf16: true\n"),
        ("b/mentions.json", {"why": "zero_optimization"}),
        ("ds.yaml", "zero_optimization:\n  stage: 2\n"),
        (".git/a.json", DS),
        ("node_modules/a.json", DS),
    ):
        write(tmp_path, name, content)
    assert list(files_in([tmp_path])) == meant
    named = tmp_path / "config.json"
    assert list(files_in([named, tmp_path / "b", Path("-")])) == [named, *meant[1:], Path("-")]


def test_a_folder_without_any_is_an_error(tmp_path: Path) -> None:
    (error,) = files_in([tmp_path])
    assert isinstance(error, DocumentError)
    assert str(tmp_path) in str(error)


@pytest.mark.parametrize("piece", ["[", '{"a":', '{"a": 1, ', " "])
def test_50_mb_are_refused_unread(tmp_path: Path, piece: str) -> None:
    file = write(tmp_path, "a.json", piece * (50_000_000 // len(piece)))
    tracemalloc.start()
    message = refusal(file)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3 * MAX_BYTES
    assert f"larger than {MAX_BYTES >> 20} MiB" in message
    assert list(files_in([tmp_path])) != [file]


def test_a_pipe_is_read_by_its_content(tmp_path: Path) -> None:
    for text, is_yaml in ((json.dumps(DS), False), ("zero_optimization: {stage: 2}\n", True)):
        reading, writing = os.pipe()
        os.write(writing, text.encode())
        os.close(writing)
        document = read_document(f"/dev/fd/{reading}", lenient=True)
        os.close(reading)
        assert document.data["zero_optimization"] == {"stage": 2}
        assert document.is_yaml == is_yaml
