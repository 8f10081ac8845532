"""Links between pages lead somewhere, in the repository as GitHub shows it and in the site alike."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.tiny import REPOSITORY
from tools.site import NOT_IN_THE_SITE, SITE_PLACES, generated_pages, with_links_of_the_site

PAGES = [*SITE_PLACES, *(str(file.relative_to(REPOSITORY)) for file in (REPOSITORY / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<address>[^)#\s]*)(?:#(?P<place>[^)\s]*))?\)")


def places(markdown: str) -> tuple[set[str], set[str]]:
    """What can stand after `#`: on GitHub, and in the site, whose slugs are Python-Markdown's."""
    set_by_hand = set(re.findall(r'<a id="([^"]+)">', markdown))
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", markdown), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower().strip() for title in titles]
    on_github = {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}
    ascii_only = [re.sub(r"[^\w\s-]", "", title.encode("ascii", "ignore").decode()) for title in plain]
    in_the_site = {re.sub(r"[-\s]+", "-", title.strip()) for title in ascii_only}
    return on_github | set_by_hand, in_the_site | set_by_hand


def links(markdown: str, folder: str) -> list[tuple[str, str]]:
    """File and place of each link that is no address."""
    found = [(link["address"], link["place"] or "") for link in LINK.finditer(BLOCK.sub("", markdown))]
    return [
        (os.path.normpath(f"{folder}/{address}") if address else "", place)
        for address, place in found
        if ":" not in address
    ]


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md", "CONTRIBUTING.md"])
def test_a_link_leads_to_a_file_and_a_heading(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    for file, place in links(text, str(Path(page).parent)):
        target = REPOSITORY / (file or page)
        assert target.exists(), file
        if place:
            assert place in places(target.read_text(encoding="utf-8"))[0], (file, place)


SITE = cache(generated_pages)
"""Made when the first test asks, not as tests are collected, which each worker does."""


def in_the_site(page: str) -> str | None:
    """The Markdown of a page of the site; None if there is none."""
    file = f"docs/{page}"
    if page in SITE():
        return SITE()[page]
    if not (REPOSITORY / file).is_file() or file.startswith(NOT_IN_THE_SITE):
        return None
    is_text = file.endswith(".md")
    return with_links_of_the_site((REPOSITORY / file).read_text("utf-8"), file) if is_text else ""


@pytest.mark.parametrize("page", [SITE_PLACES.get(page, page.removeprefix("docs/")) for page in PAGES])
def test_a_link_leads_to_a_page_of_the_site_and_a_heading(page: str) -> None:
    text = in_the_site(page)
    assert text is not None
    for file, place in links(text, str(Path(page).parent)):
        target = in_the_site(file or page)
        assert target is not None, file
        if place:
            assert place in places(target)[1], (file, place)


def test_a_link_that_leaves_the_site_leads_into_the_repository() -> None:
    text = "[a](../x/y.py) [b](../tests/z.json) [c](../ds_configs/README.md) [d](glossary.md#data) [e](schema)"
    changed = with_links_of_the_site(text, "docs/glossary.md")
    assert changed == (
        "[a](https://github.com/zerokit/zerokit/blob/main/x/y.py) "
        "[b](https://github.com/zerokit/zerokit/blob/main/tests/z.json) "
        "[c](presets.md) [d](glossary.md#data) [e](https://github.com/zerokit/zerokit/tree/main/docs/schema)"
    )


def test_the_site_shows_each_page_once() -> None:
    settings = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))
    named: list[str] = []

    def walk(part: object) -> None:
        if isinstance(part, str):
            named.append(part)
        for one in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            walk(one)

    walk(settings["nav"])
    pages = {SITE_PLACES.get(page, page.removeprefix("docs/")) for page in PAGES} | SITE().keys()
    assert sorted(named) == sorted(page for page in pages if not page.startswith("rules/"))
    assert settings["exclude_docs"].split() == [f"{folder.removeprefix('docs/')}/" for folder in NOT_IN_THE_SITE]
