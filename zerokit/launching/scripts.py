"""Files for launchers and schedulers that start a recipe on several machines.

Each starts ``python -m zerokit.train`` once per GPU. They set only the ``NCCL_*`` and ``GLOO_*`` variables
that the doctor recommends, because the libraries' defaults are good.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from zerokit.choices import DEFAULT_PORT, SAFE_PATH, LaunchTarget
from zerokit.errors import LaunchError, printable, visible
from zerokit.units import quantity


@dataclass(frozen=True)
class Job:
    recipe: Path
    """Absolute path; a name if `is_portable`."""
    folder: Path
    """Working directory: absolute, and the same on every machine."""
    num_nodes: int
    gpus_per_node: int
    hosts: Mapping[str, int] | None = None
    """From a hostfile; the first host runs rank 0."""
    image: str | None = None
    """Container image."""
    volume: str | None = None
    """Kubernetes volume claim that contains `folder`."""
    accelerator: str | None = None
    """SkyPilot's name of the card."""
    variables: Mapping[str, str] | None = None
    """Environment variables of all ranks that the doctor recommends."""
    is_portable: bool = False
    """For torchrun: start in the script's folder, wherever it is copied, with the Python on PATH there."""

    @property
    def name(self) -> str:
        """A job name that every scheduler accepts: Kubeflow's DNS-1035 is the strictest."""
        words = re.sub(r"[^a-z0-9]+", "-", self.recipe.stem.lower()).strip("-") or "zerokit"
        return (words if words[:1].isalpha() else f"run-{words}")[:40].strip("-")

    @property
    def words(self) -> list[str]:
        """Arguments for torchrun."""
        return ["-m", "zerokit.train", "--recipe", str(self.recipe)]


def launch_script(job: Job, target: LaunchTarget) -> str:
    """The text of the file.

    Raises:
        LaunchError: the hosts do not fit the run, or the target lacks an option or does not accept one.
    """
    for field, option in _OPTIONS.items():
        value = getattr(job, field)
        if value is not None and target not in option.targets:
            raise LaunchError(
                f"is not accepted by --for {target}",
                where=option.name,
                hint=f"Leave it out; it is for {', '.join(option.targets)}",
            )
        if isinstance(value, str) and not re.fullmatch(option.pattern, value):
            raise LaunchError(f"'{value[:80]}' is no name", where=option.name, hint=option.hint)
    if job.hosts is not None:
        _check_hosts(job, job.hosts)
    for path in (job.recipe, job.folder):
        if printable(path) != str(path):
            raise LaunchError("has a name that is not valid text", where=path, hint="Rename it")
    return _TARGETS[target](job)


class _Option(NamedTuple):
    name: str
    targets: tuple[LaunchTarget, ...]
    pattern: str = r"[A-Za-z0-9][A-Za-z0-9._/:@-]*"
    """Of text."""
    hint: str = "Give the name alone"


_OPTIONS = {
    "hosts": _Option("--hostfile", ("deepspeed", "torchrun", "accelerate")),
    "image": _Option("--image", ("kubernetes",)),
    "volume": _Option(
        *("--volume", ("kubernetes",), "[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?"),
        "Give the name of a claim: lower-case letters, digits, '-' and '.'",
    ),
    "accelerator": _Option(
        *("--accelerator", ("skypilot",), "[A-Za-z0-9][A-Za-z0-9._-]*"),
        "Give the name alone: their number is that of the run",
    ),
    # Containers have their own networks, which the doctor has not checked.
    "variables": _Option("--doctor", ("deepspeed", "torchrun", "accelerate", "slurm")),
}
"""Options of some targets only, by field of a job."""


def _check_hosts(job: Job, hosts: Mapping[str, int]) -> None:
    if len(hosts) != job.num_nodes:
        raise LaunchError(
            f"names {quantity(len(hosts), 'host')}, and the run has {quantity(job.num_nodes, 'node')}",
            where="--hostfile",
            hint=f"Give --num-nodes {len(hosts)}, or another file",
        )
    for host, slots in hosts.items():
        if slots != job.gpus_per_node:
            raise LaunchError(
                f"host '{host}' has {quantity(slots, 'slot')}, and the run {job.gpus_per_node} per node",
                where="--hostfile",
                hint="Slots are the GPUs of one machine, and all machines need the same number",
            )


def _rendered(job: Job, template: str, **values: Any) -> str:
    """The text of a file in `templates/`, in bash or YAML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=False,  # noqa: S701  no HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "quote": lambda word: shlex.quote(str(word)),
        "join_words": shlex.join,
        "visible": visible,
        "yaml_word": lambda word: yaml.safe_dump([word]).removeprefix("- ").rstrip("\n"),
    }
    # Programs start in the job's folder, from which Python must not import. DeepSpeed exports the variable to
    # all machines, because its name starts with PYTHON (deepspeed/launcher/runner.py, `EXPORT_ENVS`).
    environment.globals |= {
        "job": job,
        "safe_path": SAFE_PATH,
        "python": Path(sys.executable),
        "port": DEFAULT_PORT,
        "first_host": next(iter(job.hosts)) if job.hosts else None,
        "variables": job.variables or {},
    }
    return environment.get_template(template).render(values)


def _yaml(job: Job, template: str, words: list[str]) -> str:
    """The YAML of a template, without anchors, which not every reader supports."""
    data = yaml.safe_load(_rendered(job, template, words=words))
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=10_000)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _deepspeed(job: Job) -> str:
    if job.hosts is None and job.num_nodes > 1:
        raise LaunchError("needs the names of the machines", where="--for deepspeed", hint="Give --hostfile FILE")
    quoted = [f'{name}="{value}"' for name, value in (job.variables or {}).items()]
    return _rendered(job, "deepspeed.sh", quoted_variables=quoted)


def _in_folder(job: Job, why: str) -> Path:
    """The recipe's path in the job's folder; only that folder exists where the job runs."""
    recipe, folder = job.recipe.resolve(), job.folder.resolve()  # links may lead out of it
    if not recipe.is_relative_to(folder):
        raise LaunchError(f"lies outside this folder, {why}", where=job.recipe, hint="Run this in a folder above it")
    return recipe.relative_to(folder)


def _kubernetes(job: Job) -> str:
    for value, option, what in (
        (job.image, "--image", "a container image that has zerokit[train]"),
        (job.volume, "--volume", "the volume claim that holds the recipe, the data and the output"),
    ):
        if value is None:
            raise LaunchError(f"needs {what}", where="--for kubernetes", hint=f"Give {option} NAME")
    recipe = job.folder / _in_folder(job, "where --volume is mounted")
    words = [word.replace("$(", "$$(") for word in [*job.words[:-1], str(recipe)]]
    return _yaml(job, "kubernetes.yaml", words)


def _skypilot(job: Job) -> str:
    recipe = _in_folder(job, "which is what SkyPilot sends")
    return _yaml(job, "skypilot.yaml", [*job.words[:-1], str(recipe)])


_TARGETS: dict[LaunchTarget, Callable[[Job], str]] = {
    "deepspeed": _deepspeed,
    "torchrun": lambda job: _rendered(job, "torchrun.sh"),
    "accelerate": lambda job: _rendered(job, "accelerate.yaml"),
    "slurm": lambda job: _rendered(job, "slurm.sh"),
    "kubernetes": _kubernetes,
    "skypilot": _skypilot,
}
