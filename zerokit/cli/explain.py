"""``zerokit explain``: the meaning of a rule, or of a ds_config key."""

from __future__ import annotations

from zerokit.cli.command import described


@described("explain")
def explain(words: list[str] | None = None) -> None:
    """Explain a ds_config key, a rule of zerokit check, or a topic."""
    from zerokit.lint import explain as explaining
    from zerokit.reporting.terminal import show, show_markdown, show_rows

    if not words:
        show_rows(explaining.overview())
        how = "For details: zerokit explain RULE, zerokit explain KEY, or zerokit explain TOPIC"
        show(["", f"Topics: {explaining.topic_names()}", "", how])
        return
    show_markdown(explaining.explain(" ".join(words)))
