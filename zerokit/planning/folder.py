"""The folder of ``zerokit plan -o``: all files that the run needs on the rented machines."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from zerokit import __version__
from zerokit.errors import ZerokitError, printable, visible
from zerokit.files import explain_write_errors, json_text, write_file
from zerokit.launching.scripts import Job, launch_script
from zerokit.planning.job import PlanJob
from zerokit.planning.recipe import DS_CONFIG, NO_DATA, NVME_FOLDER, RECIPE, recipe_of, recipe_text
from zerokit.planning.report import Plan, PlanReport
from zerokit.units import quantity

PLAN = "plan.json"
LAUNCH = "launch.sh"


def plan_files(report: PlanReport, job: PlanJob, page: str | None = None) -> dict[str, str]:
    """The text of each file for the first plan, by name.

    Args:
        report: the answer; it has a plan.
    """
    plan = report.plans[0]
    recipe = recipe_of(plan, job, plan.ds_config)
    nodes = plan.num_gpus // plan.gpus_per_node
    launch = Job(Path(RECIPE), Path(), nodes, plan.gpus_per_node, is_portable=True)
    files = {
        DS_CONFIG: json_text(plan.ds_config),
        RECIPE: recipe_text(recipe),
        LAUNCH: launch_script(launch, "torchrun"),
        PLAN: json_text(report.model_dump()),
        "README.md": _readme(report, plan, job, str(recipe["training"].get("output_dir", "runs/mine"))),
    }
    return files if page is None else {**files, "report.html": page}


def check_folder(folder: Path, *, force: bool) -> None:
    """Check that :func:`write_folder` may write, before long work begins.

    Raises:
        ZerokitError: it has files and `force` is false, it is no folder, or there is none to make it in.
    """
    where = printable(folder)
    with explain_write_errors(folder):
        if folder.is_dir():
            if not force and any(folder.iterdir()):
                raise ZerokitError("the folder has files", where=where, hint="Add --force to replace them")
        elif os.path.lexists(folder):
            raise ZerokitError("is no folder", where=where, hint="Name another")
        elif not folder.absolute().parent.is_dir():
            hint = f"Make {printable(folder.absolute().parent)} first"
            raise ZerokitError("cannot be made: there is no folder for it", where=where, hint=hint)
        target = folder if folder.is_dir() else folder.absolute().parent
        if not os.access(target, os.W_OK):
            raise ZerokitError("cannot be written: read-only", where=where, hint="Name another folder")


def write_folder(folder: Path, files: Mapping[str, str], *, force: bool) -> None:
    """Write all files, or none: they are complete in a temporary folder before one takes its place.

    Other files of an existing folder stay.

    Raises:
        ZerokitError: as :func:`check_folder`, or the disk is full.
    """
    check_folder(folder, force=force)
    target = folder.resolve()
    staging = target.parent / f".zerokit-plan.{os.urandom(8).hex()}"
    try:
        with explain_write_errors(folder):
            staging.mkdir()
            for name, text in files.items():
                write_file(staging / name, text)
            (staging / LAUNCH).chmod(0o755)
            if not target.exists():
                staging.rename(target)
                return
            for name in files:
                if (target / name).is_dir():
                    raise ZerokitError("is a folder", where=target / name, hint="Move it away")
            for name in files:
                (staging / name).replace(target / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _readme(report: PlanReport, plan: Plan, job: PlanJob, output: str) -> str:
    machines = plan.num_gpus // plan.gpus_per_node
    rent = f"{quantity(machines, 'machine')} with {plan.gpus_per_node} x {plan.gpu}"
    start = "bash launch.sh"
    if machines > 1:
        start = f"MASTER_ADDR=ADDRESS NODE_RANK=N {start}"
    check = f"zerokit check {DS_CONFIG} --recipe {RECIPE} --num-gpus {plan.num_gpus}"
    lines = [
        f"# {visible(report.model)} on {plan.num_gpus} x {plan.gpu}",
        visible(report.verdict),
        f"Rent {rent}, copy this folder there{' to each' if machines > 1 else ''}, and run in it:",
        f"```\npip install 'zerokit[train]=={__version__}'\n{check}\n{start}\n```",
    ]
    if machines > 1:
        lines.append(
            "Run all three on every machine. ADDRESS is that of the first one; N is 0 there, 1 on the next "
            "one, and so on."
        )
    if not job.recipe and not job.data_files:
        lines.append(
            f"The plan was made without data: put yours beside the recipe as `{NO_DATA}`, or write its name "
            f"after `train:` in `{RECIPE}`."
        )
    elif job.data_files or job.recipe:
        lines.append(
            f"`{RECIPE}` names data and local models by their paths on this machine: copy them and change the paths."
        )
    if NVME_FOLDER in str(plan.ds_config):
        lines.append(f"Write the folder of the NVMe drive in `{DS_CONFIG}` in place of `{NVME_FOLDER}`.")
    run = shlex.quote(f"{output}/run.json")
    lines += [
        f"Afterwards, `zerokit plan --compare {visible(run)} {PLAN}` prints predicted against measured.",
        f"To repeat the plan:\n\n```\n{visible(report.command)}\n```",
    ]
    return "\n\n".join(lines) + "\n"
