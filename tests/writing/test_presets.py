"""Presets: names, the files in ds_configs/, and options on top."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from zerokit.errors import ConfigError
from zerokit.writing.build import build
from zerokit.writing.presets import PRESETS, with_preset
from zerokit.writing.request import Decisions

FOLDER = Path(__file__).parents[2] / "ds_configs"


def test_there_is_a_file_in_both_forms_for_each_preset() -> None:
    for folder in (FOLDER, FOLDER / "plain"):
        assert {file.stem for file in folder.glob("*.json")} == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_the_options_in_the_readme_are_those_of_the_preset(name: str) -> None:
    rows = re.findall(r"^\| `(\w+)\.json` .*\| `([^`]*)` \|$", (FOLDER / "README.md").read_text(), re.M)
    words = shlex.split(dict(rows)[name])
    said: dict[str, object] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            said[word[2:].replace("-", "_")] = True if following.startswith("--") else following
    assert said.pop("zero_stage") == str(PRESETS[name]["zero_stage"])
    assert said == {key: value for key, value in PRESETS[name].items() if key != "zero_stage"}


def test_a_given_option_stands_in_place_of_the_presets() -> None:
    chosen = with_preset("zero3_nvme", {"nvme_path": "/scratch", "offload_param": None, "inference": False})
    assert chosen == {**PRESETS["zero3_nvme"], "nvme_path": "/scratch"}
    config = build(Decisions(precision=None, **chosen)).config.dump()
    assert config["zero_optimization"]["offload_param"]["nvme_path"] == "/scratch"


@pytest.mark.parametrize(("name", "where"), [("zero3_ofload", "--preset"), (None, "--zero-stage")])
def test_what_names_no_stage_is_refused(name: str | None, where: str) -> None:
    with pytest.raises(ConfigError) as raised:
        with_preset(name, {"zero_stage": None})
    assert raised.value.where == where
    assert "zero3_offload" in raised.value.hint
