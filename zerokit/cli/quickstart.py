"""``zerokit quickstart``: train, fine-tune and generate on this machine."""

from __future__ import annotations

from pathlib import Path

from zerokit.cli.command import described


@described("quickstart")
def quickstart(output_dir: Path = Path("runs/quickstart"), max_steps: int | None = None) -> None:
    """Train a small model with DeepSpeed ZeRO, fine-tune it and generate from it, in about three minutes."""
    from zerokit.extras import require

    require("train", where="zerokit quickstart")
    from zerokit.quickstart import quickstart as run_quickstart

    run_quickstart(output_dir, max_steps=max_steps)
