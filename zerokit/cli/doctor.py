"""``zerokit doctor``: check the machines of a run; ``zerokit env``: facts for a bug report."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from zerokit import choices
from zerokit.choices import DEFAULT_PORT, OUTPUT_DIR
from zerokit.cli.command import described
from zerokit.cli.output import print_json
from zerokit.errors import visible

if TYPE_CHECKING:
    from zerokit.doctor.checks import Needs

_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red", "not checked": "cyan"}


@described("doctor")
def doctor(
    hostfile: Path | None = None,
    recipe: Path | None = None,
    master_port: int = DEFAULT_PORT,
    measure: bool = False,
    output_format: choices.OutputFormat = "text",
) -> None:
    """Check this machine, and those of a hostfile, for DeepSpeed.

    Prints a line for each check, with its fix. Exits with 1 if there is an error.
    """
    from zerokit.doctor.checks import Needs, run_checks
    from zerokit.launching.hostfile import read_hostfile
    from zerokit.reporting.terminal import show_lines

    needs = replace(Needs() if recipe is None else _needs(recipe), port=master_port)
    machines = None if hostfile is None else read_hostfile(hostfile)
    results = []
    for result in run_checks(needs, machines, measures=measure):
        results.append(result)
        if output_format == "text":
            text = f"{result.name}: {result.message}" + (f". {result.fix}" if result.fix else "")
            show_lines([((f"{result.status:<14}  ", _STYLES[result.status]), (visible(text), ""))])
    if output_format == "json":
        print_json({"checks": [asdict(result) for result in results]})
    if any(result.status == "error" for result in results):
        raise typer.Exit(1)


def _needs(recipe: Path) -> Needs:
    """Return the needs of a recipe's run."""
    from zerokit.distributed.nvme import uses_nvme
    from zerokit.doctor.checks import Needs
    from zerokit.recipe.load import load_recipe
    from zerokit.recipe.zero import offload_device, zero_section

    run = load_recipe(recipe).recipe
    zero = zero_section(run)
    named = [run.data.train, run.data.eval, run.model.path]
    words = [word for one in named for word in ([one] if isinstance(one, str) else one or [])]
    model = run.model.path
    return Needs(
        output=Path(str(run.training.get("output_dir") or OUTPUT_DIR)),
        paths=tuple(Path(word) for word in words if _is_local(word)),
        hub_model=model if model is not None and not _is_local(model) else None,
        revision=run.model.revision,
        offloads_optimizer=offload_device(zero, "offload_optimizer") in ("cpu", "nvme"),
        uses_nvme=uses_nvme(zero),
    )


def _is_local(word: str) -> bool:
    """Whether a model or data set is a file or folder, not a name on the Hub."""
    from zerokit.documents import is_folder

    path = Path(word)
    endings = (".jsonl", ".json", ".csv", ".parquet", ".txt")
    return path.is_absolute() or word.startswith(".") or path.suffix in endings or is_folder(path)


@described("env")
def env(output_format: choices.OutputFormat = "text") -> None:
    """Print facts about this machine for a bug report: versions, GPUs, limits, variables; no secrets."""
    from zerokit.doctor.environment import environment_report

    found = environment_report()
    if output_format == "json":
        print_json(found)
        return
    from zerokit.reporting.terminal import show_lines

    for name, value in found.items():
        is_section = isinstance(value, dict)
        show_lines([[(f"{name}:" if is_section else f"{name}: {value}", "")]])
        show_lines([(f"  {key}: {one}", "")] for key, one in (value.items() if is_section else ()))
