"""The tool that makes the table of DeepSpeed's releases, on a small package of the same kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.deepspeed_surface.extract import condense, spans
from tools.deepspeed_surface.surface import Surface, read_surface
from tools.deepspeed_surface.values import UNKNOWN

SOURCE = {
    "deepspeed/__init__.py": "",
    "deepspeed/runtime/__init__.py": "",
    "deepspeed/runtime/constants.py": (
        'STEPS = "steps"\nSTEPS_DEFAULT = 5 * 2\nOLD, NEW = "old_aio", "aio"\nNAMES = {"x": 1, "y": None}\n'
    ),
    "deepspeed/runtime/config_utils.py": (
        "from pydantic import BaseModel, ConfigDict\n"
        "class DeepSpeedConfigModel(BaseModel):\n    model_config = ConfigDict(extra='forbid')\n"
        "def get_scalar_param(section, name, default):\n    return section.get(name, default)\n"
    ),
    "deepspeed/runtime/config.py": (
        "from .constants import *\n"
        "from .config_utils import get_scalar_param, DeepSpeedConfigModel\n"
        "from pydantic import Field\n"
        "class Inner(DeepSpeedConfigModel):\n    deep: list = Field(default_factory=list)\n"
        "class Model(DeepSpeedConfigModel):\n"
        "    size: int = Field(int(1e6), ge=0, alias='model_size')\n"
        "    old: bool = Field(None, json_schema_extra={'deprecated': True, 'new_param': 'size'})\n"
        "    inner: Inner = None\n"
        "class Section:\n"
        "    def __init__(self, config):\n"
        "        part = config['section'] if 'section' in config else {}\n"
        "        self.read(part)\n"
        "    def read(self, part):\n"
        "        for name, default in NAMES.items():\n            get_scalar_param(part, name, default)\n"
        "def get_aio(config):\n"
        "    found = config.get(NEW, None)\n"
        "    if found is None:\n        found = config.get(OLD, {})\n"
        "    return found.pop('depth', 8)\n"
        "def reject(config):\n"
        "    for key in ['gone']:\n        if key in config:\n            raise ValueError(key)\n"
        "class DeepSpeedConfig:\n"
        "    def __init__(self, config, mpu=None):\n"
        "        self._param_dict = config\n"
        "        reject(config)\n"
        "        self.initialize(self._param_dict)\n"
        "    def initialize(self, config):\n"
        "        self.steps = get_scalar_param(config, STEPS, STEPS_DEFAULT)\n"
        "        self.model = Model(**config.get('model', {}))\n"
        "        self.section = Section(config)\n"
        "        self.aio = get_aio(config)\n"
        "        for key, value in config.get('any', {}).items():\n            print(key)\n"
    ),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, text in SOURCE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_reader_follows_the_configuration(source: Path) -> None:
    surface = read_surface(source)
    keys = {".".join(path): key for path, key in surface.keys.items()}
    assert {name: key.default for name, key in keys.items() if key.default is not UNKNOWN} == {
        "steps": 10,
        "model": {},
        "model.model_size": 1_000_000,
        "model.old": None,
        "model.inner": None,
        "model.inner.deep": [],
        "section.x": 1,
        "section.y": None,
        "aio": None,
        "aio.depth": 8,
        "old_aio": {},
        "old_aio.depth": 8,
        "any": {},
    }
    assert set(keys) - {"section"} == {name for name, key in keys.items() if key.default is not UNKNOWN}
    assert (keys["model.model_size"].other_name, keys["model.model_size"].bounds) == ("size", {"ge": 0})
    assert (keys["model.old"].deprecated, keys["model.old"].replaced_by) == (True, "size")
    assert surface.strict == {("model",), ("model", "inner")}
    assert surface.refused == {("gone",)}
    assert surface.passed_on == {("any",)}


def test_releases_are_condensed_to_what_changes(source: Path) -> None:
    old = read_surface(source)
    file = source / "deepspeed/runtime/constants.py"
    file.write_text(SOURCE["deepspeed/runtime/constants.py"].replace("5 * 2", "3").replace('"y"', '"z"'))
    facts = condense([("1", old), ("2", read_surface(source)), ("3", Surface(dict(old.keys)))])
    assert facts["keys"]["steps"] == {"defaults": [["1", 10], ["2", 3], ["3", 10]]}
    assert facts["keys"]["section.y"]["spans"] == [[None, "2"], ["3", None]]
    assert facts["refused"] == {"gone": [[None, "3"]]}
    assert facts["strict"]["model"] == [[None, "3"]]


def test_spans() -> None:
    assert spans(zip("abc", [True, True, True], strict=True)) == [[None, None]]
    assert spans(zip("abc", [False, True, False], strict=True)) == [["b", "c"]]
    assert spans(zip("abc", [True, False, True], strict=True)) == [[None, "b"], ["c", None]]
    assert spans(zip("abc", [False] * 3, strict=True)) == []
