"""What the documentation site has beside the files in ``docs/``, for mkdocs (`hooks` in mkdocs.yml).

- the front page: the README
- a page of the known defects of DeepSpeed
- a page for each rule of ``zerokit check``, and the index of rules with links to them
- tables of commands, recipe keys and ds_config keys
- the Python API, from docstrings
- the presets: the README of ``ds_configs/``

``python -m tools.site`` writes ``docs/rules.md`` and ``docs/stand-ins.md``, to be read in the repository.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from tools import reference
from tools.stand_ins_page import stand_ins_page
from zerokit.lint.defects import KNOWN_DEFECTS
from zerokit.lint.rule import TOPICS, Rule
from zerokit.lint.rule_pages import in_code, page
from zerokit.lint.run import all_rules
from zerokit.units import quantity

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/zerokit/zerokit"
SITE_PLACES = {"README.md": "index.md", "ds_configs/README.md": "presets.md"}
"""Pages that are not in ``docs/``: file -> place in the site."""
NOT_IN_THE_SITE = ("docs/schema",)
"""As `exclude_docs` of mkdocs.yml has it."""

_RELATIVE_LINK = re.compile(r"\]\((?P<address>[^)#:\s]+)(?P<place>#[^)\s]*)?\)")

API = {
    "ds_config": ("ds_configs", ["zerokit.ds_config", "zerokit.config", "zerokit.findings"]),
    "estimate": ("Memory estimates", ["zerokit.estimation.api", "zerokit.estimation.request", "zerokit.memory"]),
    "rehearse": (
        "Rehearsals",
        [
            "zerokit.rehearsal.parent.rehearse",
            "zerokit.rehearsal.report.report",
            "zerokit.rehearsal.process_setup",
            "zerokit.rehearsal.worker.virtual_rank",
        ],
    ),
    "models": ("Models", ["zerokit.models"]),
    "recipe": ("Recipes", ["zerokit.recipe.model", "zerokit.recipe.load"]),
    "errors": ("Errors", ["zerokit.errors"]),
}
"""Page -> its title and the modules whose public names it documents."""


def generated_pages() -> dict[str, str]:
    """Path in the site -> Markdown."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    presets = (ROOT / "ds_configs" / "README.md").read_text(encoding="utf-8")
    found = {
        "index.md": with_links_of_the_site(readme, "README.md"),
        "presets.md": with_links_of_the_site(presets, "ds_configs/README.md"),
        "rules.md": index(with_pages=True),
    }
    for rule in all_rules().values():
        found[f"rules/{rule.id}.md"] = page(rule)
    found["defects.md"] = "# Known defects of DeepSpeed\n\n" + "\n".join(
        f"#{defect.page}" for defect in KNOWN_DEFECTS.values()
    )
    found |= reference.pages()
    for name, (title, modules) in API.items():
        found[f"api/{name}.md"] = "\n\n".join([f"# {title}", *(f"::: {module}" for module in modules)]) + "\n"
    return found


def index(*, with_pages: bool) -> str:
    """All rules by topic, in Markdown.

    Args:
        with_pages: whether each name leads to the rule's page, ``rules/ID.md``.
    """
    rules = list(all_rules().values())
    parts = [
        "# Rules of `zerokit check`",
        f"{quantity(len(rules), 'rule')}. Error: DeepSpeed, the Trainer or accelerate refuses the config, "
        "crashes later, or ignores what the file says. Warning: the setting has no effect, or is probably a "
        "mistake. Info: the setting could be better.",
        "`zerokit explain RULE` says why, from which source, and shows a finding and how to fix it.",
        "A file switches a rule off for itself by a key at its top that DeepSpeed ignores:",
        '```json\n"_zerokit": {"disable": ["RULE", {"rule": "RULE", "path": "zero_optimization.stage", '
        '"reason": "..."}]}\n```',
    ]
    for topic, title in TOPICS.items():
        of_topic = [rule for rule in rules if rule.topic == topic]
        if of_topic:
            parts += [f"## {title}", _table(of_topic, with_pages=with_pages)]
    return "\n\n".join(parts) + "\n"


def _table(rules: list[Rule], *, with_pages: bool) -> str:
    rows = ["| rule | severity | what it finds | needs |", "|---|---|---|---|"]
    for rule in rules:
        needs = ", ".join(map(in_code, rule.needs))
        title = rule.title.replace("|", "\\|")
        name = f"[{rule.id}](rules/{rule.id}.md)" if with_pages else rule.id
        name = f'<a id="{rule.id}"></a>{name}'
        rows.append(f"| {name} | {rule.severity} | {title} | {needs} |")
    return "\n".join(rows)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those in ``docs/``; called by mkdocs."""
    from mkdocs.structure.files import File

    for path, text in generated_pages().items():
        standing = files.get_file_from_path(path)
        if standing is not None:
            files.remove(standing)
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to what the site does not have to the repository; called by mkdocs."""
    path = f"docs/{page.file.src_uri}"
    return with_links_of_the_site(markdown, path) if (ROOT / path).is_file() else markdown


def with_links_of_the_site(markdown: str, path: str) -> str:
    """Links as they are in the site: to a page by its place there, to other files in the repository.

    Args:
        markdown: of a page.
        path: of its file in the repository.
    """
    folder = PurePosixPath(SITE_PLACES.get(path, path.removeprefix("docs/"))).parent

    def link(match: re.Match[str]) -> str:
        address, place = match["address"], match["place"] or ""
        file = os.path.normpath(PurePosixPath(path).parent / address)
        if file in SITE_PLACES or (file.startswith("docs/") and not file.startswith(NOT_IN_THE_SITE)):
            target = SITE_PLACES.get(file, file.removeprefix("docs/"))
            return f"]({os.path.relpath(target, folder)}{place})"
        kind = "tree" if (ROOT / file).is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{file}{place})"

    return _RELATIVE_LINK.sub(link, markdown)


if __name__ == "__main__":
    (ROOT / "docs" / "rules.md").write_text(index(with_pages=False), encoding="utf-8")
    (ROOT / "docs" / "stand-ins.md").write_text(stand_ins_page(), encoding="utf-8")
