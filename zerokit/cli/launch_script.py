"""``zerokit launch-script``: a start script for a recipe on several machines."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from zerokit import choices
from zerokit.cli.command import described
from zerokit.cli.output import not_stdout
from zerokit.console import note
from zerokit.documents import path_exists
from zerokit.errors import LaunchError, printable
from zerokit.extras import install_command, missing_packages
from zerokit.files import write_file
from zerokit.hardware import GPUS_PER_NODE
from zerokit.hardware.cluster import Parallelism
from zerokit.models.parallelism import parallelism_misfit

if TYPE_CHECKING:
    from zerokit.recipe import LoadedRecipe

_SIZES = (*range(1, 9), 16)
"""Numbers of GPUs that machines have."""
_START: Mapping[choices.LaunchTarget, str] = {
    "deepspeed": "bash {file}",
    "torchrun": "bash {file}",
    "accelerate": "the command in its first line",
    "slurm": "sbatch {file}",
    "kubernetes": "kubectl apply -f {file}",
    "skypilot": "sky launch {file}",
}
"""How to start what is written."""


def _check_groups(loaded: LoadedRecipe, num_nodes: int, gpus_per_node: int) -> None:
    """Refuse groups of the recipe's `parallel` that do not divide the GPUs, and note those that nodes split."""
    sizes = Parallelism(**loaded.recipe.parallel.model_dump())
    if (misfit := parallelism_misfit(sizes, num_gpus=num_nodes * gpus_per_node)) is not None:
        raise LaunchError(misfit.message, where=loaded.where("parallel"), hint=misfit.hint)
    if gpus_per_node % sizes.group_size:
        kind = "tensor" if sizes.tensor > 1 else "sequence"
        note(
            f"zerokit: note: nodes of {gpus_per_node} GPUs split groups of {sizes.group_size}: {kind} parallelism "
            "then exchanges activations between nodes in each layer, which is slow"
        )


@described("launch-script", output=not_stdout)
def launch_script(
    recipe: Path,
    target: choices.LaunchTarget,
    num_nodes: int = 1,
    gpus_per_node: int = GPUS_PER_NODE,
    hostfile: Path | None = None,
    image: str | None = None,
    volume: str | None = None,
    accelerator: str | None = None,
    doctor: Path | None = None,
    output: Path | None = None,
    force: bool = False,
) -> None:
    """Write a start script for a recipe on several machines.

    It is a bash script for deepspeed and torchrun, a config file for accelerate, an sbatch script for slurm,
    a PyTorchJob for kubernetes, and a task for skypilot.
    """
    from zerokit.launching.hostfile import read_hostfile
    from zerokit.launching.network_variables import read_network_variables
    from zerokit.launching.scripts import Job, launch_script
    from zerokit.recipe.load import load_recipe

    if gpus_per_node not in _SIZES:
        raise LaunchError(
            f"no machine has {gpus_per_node} GPUs",
            where="--gpus-per-node",
            hint="Give 1 to 8, or 16; more GPUs are more nodes: --num-nodes",
        )
    _check_groups(load_recipe(recipe), num_nodes, gpus_per_node)
    hosts = None if hostfile is None else read_hostfile(hostfile)
    variables = None if doctor is None else read_network_variables(doctor)
    job = Job(
        recipe=recipe.absolute(),
        folder=Path.cwd(),
        num_nodes=num_nodes,
        gpus_per_node=gpus_per_node,
        hosts=hosts,
        image=image,
        volume=volume,
        accelerator=accelerator,
        variables=variables,
    )
    text = launch_script(job, target)
    if doctor is not None and not variables:
        note(f"zerokit: note: {printable(doctor)} suggests no network variable, so the script sets none")
    if str(Path(sys.executable).parent) in text and (absent := missing_packages("train")):
        listed = ", ".join(absent)
        note(
            f"zerokit: note: the script starts {sys.executable}, which lacks {listed}: write it with the "
            f"Python that trains, or run {install_command('train')}"
        )
    if output is None:
        typer.echo(text, nl=False)
    elif any(
        file is not None and path_exists(output) and output.samefile(file) for file in (recipe, hostfile, doctor)
    ):
        raise LaunchError("is what this run reads", where=f"-o {output}", hint="Name another file")
    else:
        write_file(output, text, force=force, follow_links=True)
        start = _START[target].format(file=shlex.quote(str(output)))
        if target == "torchrun" and num_nodes > 1:
            start = "the command in its first lines, on every machine"
        note(f"written: {printable(output)}. Start it with: {start}")
