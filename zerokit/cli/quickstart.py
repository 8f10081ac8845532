"""``zerokit quickstart``: train, fine-tune and generate on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def quickstart(
    output_dir: Annotated[Path, typer.Option(help="Where everything is written.")] = Path("runs/quickstart"),
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Stop both training runs after so many steps.")
    ] = None,
) -> None:
    """Train a small model with DeepSpeed ZeRO, fine-tune it and generate from it, in about three minutes."""
    from zerokit.extras import require

    require("train", where="zerokit quickstart")
    from zerokit.quickstart import quickstart as run_quickstart

    run_quickstart(output_dir, max_steps=max_steps)
