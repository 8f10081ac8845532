"""``zerokit checkpoint``: look at checkpoints of DeepSpeed, export, compare and reshard them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from zerokit import choices
from zerokit.cli.checkpoint_summary import as_data, print_text
from zerokit.cli.command import Command, command_group, described
from zerokit.cli.output import print_json
from zerokit.console import note
from zerokit.errors import ZerokitError, collect_errors, raise_together, visible
from zerokit.reporting.terminal import show as print_parts
from zerokit.reporting.terminal import show_rows
from zerokit.units import format_bytes, quantity

if TYPE_CHECKING:
    from zerokit.checkpoint.prune import Pruning

app = command_group(
    "checkpoint",
    "Inspect DeepSpeed checkpoints, export the model, reshard for another number of GPUs, merge adapters, clean up.",
)


@app.command(cls=Command)
@described("checkpoint show")
def show(path: Path, output_format: choices.OutputFormat = "text") -> None:
    """Print what a checkpoint contains, and whether anything is missing.

    Reads only the headers of its files. Exits with 1 if something is missing.
    """
    from zerokit.checkpoint.summary import summarize

    summary = summarize(path)
    if output_format == "json":
        print_json(as_data(summary))
    else:
        print_text(summary)
    if summary.problem is not None:
        raise typer.Exit(1)


@app.command(cls=Command)
@described("checkpoint export")
def export(
    path: Path,
    output: Path,
    dtype: choices.Precision | None = None,
    base: Path | None = None,
    no_config: bool = False,
    no_verify: bool = False,
    output_format: choices.OutputFormat = "text",
) -> None:
    """Write the model of a checkpoint as a folder that from_pretrained loads; an adapter as an adapter.

    Weights are safetensors, read and written a block at a time. The folder appears when it is complete. An
    interrupted export continues where it stopped.
    """
    from zerokit.checkpoint.export import export as export_model

    done = export_model(path, output, dtype=dtype, base=base, needs_config=not no_config, verify=not no_verify)
    for remark in done.notes:
        note(remark)
    if output_format == "json":
        print_json(
            {
                "folder": str(done.folder),
                "files": list(done.files),
                "num_tensors": done.num_tensors,
                "bytes": done.nbytes,
                "dtypes": list(done.dtypes),
                "config": str(done.config) if done.config is not None else None,
            }
        )
        return
    kept = f"; {quantity(done.kept, 'file')} were there already" if done.kept else ""
    size = f"{quantity(done.num_tensors, 'tensor')}, {format_bytes(done.nbytes)} in {', '.join(done.dtypes)}"
    print_parts([f"{done.folder}: {size}{kept}"])
    if done.config is not None:
        print_parts([f"config and tokenizer copied from {done.config.parent}"])


@app.command(cls=Command)
@described("checkpoint reshard")
def reshard(
    path: Path,
    num_gpus: int,
    output: Path,
    zero_stage: int | None = None,
    no_verify: bool = False,
    output_format: choices.OutputFormat = "text",
) -> None:
    """Write a checkpoint for another number of GPUs or another ZeRO stage, to resume from.

    It has the files that DeepSpeed would have saved there, for load_checkpoint.
    """
    from zerokit.checkpoint.reshard import reshard as reshard_all

    done = reshard_all(path, output, num_ranks=num_gpus, stage=zero_stage, verify=not no_verify)
    if output_format == "json":
        print_json({**vars(done), "folder": str(done.folder)})
        return
    size = f"{quantity(done.num_files, 'file')}, {format_bytes(done.nbytes)}"
    print_parts([f"{done.folder}: {size}, of {quantity(done.num_ranks, 'rank')} and ZeRO stage {done.stage}"])
    print_parts([f"load it with: {done.load}"])


@app.command(cls=Command)
@described("checkpoint verify")
def verify(path: Path, output_format: choices.OutputFormat = "text") -> None:
    """Read all weights of a checkpoint, and check that it is complete, unchanged, and of one step.

    Prints files that it does not read.

    Exits with 0 if all is well. Exits with 1 if weights are infinite or NaN, or if SHA256SUMS is missing,
    incomplete or malformed. Exits with 2 if the checkpoint is incomplete, changed, or of several steps.
    """
    from zerokit.checkpoint.verify import verify as verify_all

    found = verify_all(path)
    if output_format == "json":
        print_json(
            {
                "folder": str(found.facts.folder),
                "num_files": found.num_files,
                "bytes": found.nbytes,
                "checksums": found.hashes,
                "checksum_problem": str(found.checksum_problem) if found.checksum_problem else None,
                "without_checksums": [str(file) for file in found.without_checksums],
                "not_looked_at": [str(file) for file in found.not_read],
                "not_finite": found.remarks.not_finite,
                "differing": found.remarks.differing,
            }
        )
    else:
        looked_at = f"{quantity(found.num_files, 'file')}, {format_bytes(found.nbytes)}"
        how = "all SHA-256 as in SHA256SUMS" if found.hashes else "all CRC-32 right"
        print_parts([f"{found.facts.folder}: {looked_at}: complete, {how}"])
        for what, files in (
            ("not verified, because their tensors have no checksum", found.without_checksums),
            ("not read", found.not_read),
        ):
            if files:
                print_parts([f"{what}: {', '.join(file.name for file in files)}"])
        if found.checksum_problem is not None:
            print_parts([f"not verified by SHA256SUMS: {found.checksum_problem}"])
        print_parts(f"not finite: {name}" for name in found.remarks.not_finite)
        print_parts(f"not the same on all ranks: {name}" for name in found.remarks.differing)
    if found.remarks.not_finite or found.checksum_problem is not None:
        raise typer.Exit(1)


@app.command(cls=Command)
@described("checkpoint merge")
def merge(adapter: Path, output: Path, base: Path | None = None, output_format: choices.OutputFormat = "text") -> None:
    """Merge an adapter into its model, and write both with the adapter's tokenizer as one folder.

    Weights are read and written a block at a time; the folder appears when it is complete.
    """
    from zerokit.checkpoint.merge import merge as merge_adapter

    done = merge_adapter(adapter, output, base=base)
    if output_format == "json":
        print_json({**vars(done), "folder": str(done.folder), "base": str(done.base)})
        return
    kept = f", {done.num_replaced:,} replaced" if done.num_replaced else ""
    size = f"{quantity(done.num_merged, 'weight')} changed{kept}, {format_bytes(done.nbytes)}"
    print_parts([f"{done.folder}: {size}, of {done.base}"])


@app.command(cls=Command)
@described("checkpoint diff")
def diff(left: Path, right: Path, output_format: choices.OutputFormat = "text") -> None:
    """Print the tensors in which two checkpoints differ, and by how much. Exits with 1 if any differs.

    Floating-point types are compared in the one with fewer bits.
    """
    from zerokit.checkpoint.compare import compare

    found = list(compare(left, right))
    if output_format == "json":
        print_json({"a": str(left), "b": str(right), "equal": not found, "differences": list(map(asdict, found))})
    elif found:
        rows = []
        for one in found:
            largest = f"{one.largest:.3g}" if one.largest is not None else "-"
            rows.append((one.name, one.what, f"{one.num_elements:,}" if one.num_elements else "-", largest))
        show_rows(rows, ("tensor", "differs in", "elements", "at most by"))
    else:
        print_parts([f"{left} and {right} have the same tensors"])
    if found:
        raise typer.Exit(1)


@app.command(cls=Command)
@described("checkpoint prune")
def prune(
    runs: list[Path], keep: int, yes: bool = False, dry_run: bool = False, output_format: choices.OutputFormat = "text"
) -> None:
    """Remove all but the N newest complete checkpoints of each run.

    A folder that has none is named and left alone, and the exit code is 2.
    """
    from zerokit.checkpoint.prune import plan_pruning, remove, size_of

    plans, errors = {}, list[ZerokitError]()
    for run in runs:
        with collect_errors(errors):
            plans[run] = plan_pruning(run, keep)
    sizes = {folder: size_of(folder) for plan in plans.values() for folder in plan.removed}
    total = format_bytes(sum(sizes.values()))
    if sizes and not yes and not dry_run:
        names = ", ".join(
            str(folder.relative_to(run) if len(runs) == 1 else folder)
            for run, plan in plans.items()
            for folder in plan.removed
        )
        if not sys.stdin.isatty():
            hint = "Add --yes to do so, or --dry-run to see what stays"
            where = ", ".join(map(str, plans))
            raise ZerokitError(f"would remove {names} ({total})", where=where, hint=hint)
        typer.confirm(visible(f"Remove {names} ({total})?"), abort=True, err=True)
    for folder in () if dry_run else sizes:
        remove(folder)
    if output_format == "json":
        paths = {
            action: [str(folder) for plan in plans.values() for folder in vars(plan)[action]] for action in _PRUNED
        }
        print_json({"dry_run": dry_run, **paths, "removed_bytes": sum(sizes.values())})
    else:
        _print_pruned(plans.values(), sizes, dry_run=dry_run)
        if sizes:
            print_parts([f"{'would free' if dry_run else 'freed'} {total}"])
    raise_together(errors)


_PRUNED = {
    "kept": "{would}kept",
    "removed": "{would}removed",
    "left": "not a complete DeepSpeed checkpoint, {would}left alone",
}
"""Lines about the folders of a pruning."""


def _print_pruned(plans: Iterable[Pruning], sizes: Mapping[Path, int], *, dry_run: bool) -> None:
    for plan in plans:
        for action, words in _PRUNED.items():
            label = words.format(would="would be " if dry_run else "")
            for folder in vars(plan)[action]:
                size = f" ({format_bytes(sizes[folder])})" if folder in sizes else ""
                print_parts([f"{label}: {folder}{size}"])
