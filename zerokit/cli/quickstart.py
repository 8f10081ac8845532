"""``zerokit quickstart``: train, fine-tune and generate on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zerokit import console


def quickstart(
    output_dir: Annotated[Path, typer.Option(help="Where everything is written.")] = Path("runs/quickstart"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again what was trained before.")] = False,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Stop both training runs after so many steps.")
    ] = None,
) -> None:
    """Train a small model with DeepSpeed ZeRO, fine-tune it and generate from it, on any machine."""
    from zerokit.extras import require

    require("train", where="zerokit quickstart")
    from zerokit.quickstart.run import quickstart as run_quickstart

    try:
        run_quickstart(output_dir, fresh=fresh, max_steps=max_steps)
    except KeyboardInterrupt:
        again = "Without --fresh, the command" if fresh else "The same command"
        console.note(f"zerokit: stopped. {again} goes on after the last run that came to its end")
        raise
