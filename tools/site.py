"""What the documentation site has beside the files in ``docs/``, for mkdocs (`hooks` in mkdocs.yml).

- the front page: the README
- a page of the known defects of DeepSpeed
- a page for each rule of ``zerokit check``, and the index of rules with links to them
- the Python API, from docstrings
- the presets: the README of ``ds_configs/``

``python -m tools.site`` writes ``docs/rules.md``, the index for those who read the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from zerokit.lint.defects import KNOWN_DEFECTS
from zerokit.lint.rule import Rule
from zerokit.lint.rule_pages import TOPICS, in_code, page
from zerokit.lint.run import all_rules
from zerokit.units import quantity

ROOT = Path(__file__).resolve().parents[1]

API = {
    "ds_config": ("ds_configs", ["zerokit.ds_config", "zerokit.config", "zerokit.findings"]),
    "estimate": ("Memory estimates", ["zerokit.estimation.ask", "zerokit.memory"]),
    "rehearse": (
        "Rehearsals",
        [
            "zerokit.rehearsal.rehearse",
            "zerokit.rehearsal.report",
            "zerokit.rehearsal.process_setup",
            "zerokit.rehearsal.virtual_rank",
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
        "index.md": re.sub(r"\[([^]]+)\]\([A-Z]+\.md\)", r"\1", readme.replace("](docs/", "](")),
        "presets.md": re.sub(r"\[(`plain/`)\]\(plain\)", r"\1", presets),
        "rules.md": index(with_pages=True),
    }
    for rule in all_rules().values():
        found[f"rules/{rule.id}.md"] = page(rule)
    found["defects.md"] = "# Known defects of DeepSpeed\n\n" + "\n".join(
        f"#{defect.page}" for defect in KNOWN_DEFECTS.values()
    )
    for name, (title, modules) in API.items():
        found[f"api/{name}.md"] = "\n\n".join([f"# {title}", *(f"::: {module}" for module in modules)]) + "\n"
    return found


def index(*, with_pages: bool) -> str:
    """All rules by topic, in Markdown.

    Args:
        with_pages: whether each name leads to the rule's page, ``rules/ID.md``; else it is a place of its own
            to link to, ``#ID``.
    """
    rules = list(all_rules().values())
    parts = [
        "# Rules of `zerokit check`",
        f"{quantity(len(rules), 'rule')}. An error: DeepSpeed, or the Trainer or accelerate if they are the "
        "target, refuses the config, crashes later, or does something else than the file plainly says. A "
        "warning: the setting has no effect, or is probably not meant. Info: it could be better.",
        "`zerokit explain RULE` says why, from which source, and shows what the rule finds and how that is "
        "mended.",
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
        name = f"[{rule.id}](rules/{rule.id}.md)" if with_pages else f'<a id="{rule.id}"></a>{rule.id}'
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


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links that leave ``docs/`` to the page's place in the site; called by mkdocs."""
    return markdown.replace("](../ds_configs/README.md)", "](presets.md)")


if __name__ == "__main__":
    (ROOT / "docs" / "rules.md").write_text(index(with_pages=False), encoding="utf-8")
