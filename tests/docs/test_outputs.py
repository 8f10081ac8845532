from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import command_lines
from tests.docs.outputs import FILES, PAGES, PAIR, WITH_EXAMPLES, output_of
from tests.tiny import REPOSITORY

DOCS = REPOSITORY / "docs"
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"\b\d[\d,]*(?:\.\d+)? (?:GiB|MiB)|\b\d{1,3}(?:,\d{3})+\b")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("docs")


def pairs(page: str) -> list[tuple[str, str]]:
    return [(pair["command"], pair["output"]) for pair in PAIR.finditer((DOCS / page).read_text())]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "output"), [pair for page in WITH_EXAMPLES for pair in pairs(page)])
def test_a_page_shows_what_its_command_prints(command: str, output: str, folder: Path) -> None:
    assert output_of(command, folder) == output


def test_the_readme_shows_what_check_says_of_its_config(tmp_path: Path) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"```json\n(.*?)```\n\n```console\n\$ zerokit (.*?)\n(.*?)```", text, re.DOTALL)
    assert shown is not None
    config, command, said = shown.groups()
    (tmp_path / "ds.json").write_text(config, encoding="utf-8")
    done = command_lines.run(f"zerokit {command}", cwd=tmp_path, env={}, together=True)
    assert (done.returncode, done.stdout) == (1, said)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_has_its_output(page: str) -> None:
    assert (DOCS / page).read_text().count("```bash\n") == len(pairs(page)) > 0


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_in_the_text_was_printed(page: str) -> None:
    text = (DOCS / page).read_text()
    prose, printed = BLOCK.sub("", text), "\n".join(output for _, output in pairs(page))
    figures = FIGURE.findall(prose)
    assert figures
    assert [figure for figure in figures if figure not in printed] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_the_picture_is_today_s(name: str, folder: Path) -> None:
    command = next(command for page in PAGES for command, _ in pairs(page) if Path(name).name in command)
    output_of(command, folder)
    assert (folder / Path(name).name).read_text(encoding="utf-8") == (DOCS / name).read_text(encoding="utf-8")
