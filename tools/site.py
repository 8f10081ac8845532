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
from zerokit.lint.rule_pages import index, page
from zerokit.lint.run import all_rules

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
