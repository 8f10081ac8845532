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
from zerokit.documents import printable
from zerokit.errors import LaunchError, visible
from zerokit.units import quantity

_SSH_OPTIONS = "-o ServerAliveInterval=10 -o ServerAliveCountMax=3"
"""ssh options; without them ssh waits for hours for a machine that is gone."""


@dataclass(frozen=True)
class Job:
    """A run to start."""

    recipe: Path
    """Absolute path."""
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
        if isinstance(value, str) and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", value):
            raise LaunchError(f"'{value[:80]}' is no name", where=option.name, hint="Give the name alone")
    if job.hosts is not None:
        _check_hosts(job, job.hosts)
    for path in (job.recipe, job.folder):
        if printable(path) != str(path):
            raise LaunchError("has a name that is not valid text", where=printable(path), hint="Rename it")
    return _TARGETS[target](job)


class _Option(NamedTuple):
    name: str
    targets: tuple[LaunchTarget, ...]


_OPTIONS = {
    "hosts": _Option("--hostfile", ("deepspeed", "torchrun", "accelerate")),
    "image": _Option("--image", ("kubernetes",)),
    "volume": _Option("--volume", ("kubernetes",)),
    "accelerator": _Option("--accelerator", ("skypilot",)),
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


_PYTHON = Path(sys.executable)
_ENV = f"env {SAFE_PATH}=1 "
"""Prefix of programs that start in the job's folder. DeepSpeed exports the variable to all machines, because
its name starts with PYTHON (deepspeed/launcher/runner.py, `EXPORT_ENVS`)."""


_REASON = "# Recommended by 'zerokit doctor':"


def _settings(job: Job) -> list[str]:
    """``NAME=value``, without characters that bash expands."""
    return [f"{name}={value}" for name, value in (job.variables or {}).items()]


def _shell(job: Job, *lines: str, header: tuple[str, ...] = ()) -> str:
    """A bash script in the job's folder, with this Python's programs on PATH."""
    return "\n".join(
        [
            "#!/bin/bash",
            *header,
            "set -euo pipefail",
            f"cd -- {shlex.quote(str(job.folder))}",
            f"export PATH={shlex.quote(str(_PYTHON.parent))}:$PATH",
            *(_REASON for _ in _settings(job)[:1]),
            *(f"export {setting}" for setting in _settings(job)),
            *lines,
            "",
        ]
    )


def _torchrun(job: Job, python: str | Path, *, node: str, address: str, port: str) -> str:
    """The torchrun command in bash, without the program."""
    return (
        f"{_ENV}{shlex.quote(str(python))} -m torch.distributed.run "
        f"--nnodes {job.num_nodes} --node-rank {node} "
        f"--nproc-per-node {job.gpus_per_node} --master-addr {address} --master-port {port}"
    )


def _deepspeed(job: Job) -> str:
    if job.hosts is None and job.num_nodes > 1:
        raise LaunchError(
            "needs the names of the machines", where="--for deepspeed", hint="Give --hostfile FILE"
        )
    words = ["--module", *job.words[1:]]
    launcher = _ENV + shlex.quote(str(_PYTHON.parent / "deepspeed"))
    if job.hosts is None:
        return _shell(job, f"exec {launcher} --num_gpus {job.gpus_per_node} {shlex.join(words)}")
    lines = [f"{host} slots={slots}" for host, slots in job.hosts.items()]
    return _shell(
        job,
        "made=$(mktemp -d)",
        "trap 'rm -rf \"$made\"' EXIT",
        "cat > \"$made/hosts\" <<'HOSTS'",
        *lines,
        "HOSTS",
        *_exported(job),
        "# ssh waits for hours for a machine that is gone, and DeepSpeed for ssh.",
        f'export PDSH_SSH_ARGS_APPEND="{_SSH_OPTIONS} ${{PDSH_SSH_ARGS_APPEND:-}}"',
        f'{launcher} --hostfile "$made/hosts" --master_port {DEFAULT_PORT} {shlex.join(words)}',
    )


def _exported(job: Job) -> list[str]:
    """Lines that make DeepSpeed's launcher set variables on all machines, through a file.

    DeepSpeed does not quote them for remote shells, and zsh expands =eth0 to a path. The user's own variable
    files come last and win, because this file replaces them. Source: deepspeed/launcher/runner.py,
    `DEEPSPEED_ENVIRONMENT_PATHS`; multinode_runner.py, `add_export`.
    """
    if not job.variables:
        return []
    quoted = [f'{name}="{value}"' for name, value in job.variables.items()]
    return [
        f"printf '%s\\n' {shlex.join(quoted)} > \"$made/variables\"",
        "own=${DS_ENV_FILE-.deepspeed_env}",
        'case "$own" in /*) own=("$own") ;; *) own=(~/"$own" "./$own") ;; esac',
        'sed "" "${own[@]}" >> "$made/variables" 2> /dev/null || true',
        'export DS_ENV_FILE="$made/variables"',
    ]


def _on_each_node(job: Job) -> str:
    if job.num_nodes == 1:
        address, node = "127.0.0.1", "0"
    else:
        first = next(iter(job.hosts)) if job.hosts else None
        address = f'"${{MASTER_ADDR:{f"-{first}" if first else "?the address of the first machine"}}}"'
        node = '"${NODE_RANK:?the number of this machine, from 0}"'
    run = _torchrun(job, _PYTHON, node=node, address=address, port=f'"${{MASTER_PORT:-{DEFAULT_PORT}}}"')
    return _shell(
        job,
        f"exec {run} {shlex.join(job.words)}",
        header=("# Start it on every machine: MASTER_ADDR=10.0.0.1 NODE_RANK=0 bash FILE",)
        if job.num_nodes > 1
        else (),
    )


def _accelerate(job: Job) -> str:
    first = next(iter(job.hosts)) if job.hosts else None
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",
        "num_machines": job.num_nodes,
        "num_processes": job.num_nodes * job.gpus_per_node,
        "machine_rank": 0,
        "main_process_port": DEFAULT_PORT,
        "main_training_function": "main",
        "mixed_precision": "no",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if job.num_nodes > 1:
        config["main_process_ip"] = first or "10.0.0.1"
    rank = " --machine_rank 0" if job.num_nodes > 1 else ""
    address = "" if first or job.num_nodes == 1 else " --main_process_ip ADDRESS_OF_THE_FIRST"
    # In quotes, because zsh expands =eth0 to a path.
    settings = "".join(f"{name}='{value}' " for name, value in (job.variables or {}).items())
    start = (
        f"{settings}{SAFE_PATH}=1 accelerate launch --config_file FILE{rank}{address} {shlex.join(job.words)}"
    )
    on = " on every machine, with its number" if job.num_nodes > 1 else ""
    lines = [
        f"# Start it{on}: {visible(start)}",
        "# accelerate only starts the ranks (MULTI_GPU, mixed_precision no); the recipe sets the precision.",
        "# Do not add a ds_config here: the recipe has one.",
        *["# Replace 10.0.0.1 by the address of the first machine."] * bool(address),
    ]
    return "\n".join([*lines, yaml.safe_dump(config, sort_keys=False)])


_SECONDS_TO_SAVE = 120
"""From Slurm's signal to its time limit. Ranks take 60 of them (--save-within), torchrun some more."""
_BEFORE_STEP = (
    "asked=no status=0 step=",
    'trap \'asked=yes; [ -z "$step" ] || kill -TERM "$step" || true\' TERM',
)
_AFTER_STEP = (
    "step=$!",
    'wait "$step" || status=$?',
    "# Until the ranks have saved a checkpoint. They end with 75, and torchrun with 1.",
    'if [ "$asked" = yes ]; then',
    "    status=0",
    '    wait "$step" || status=$?',
    '    if [ "$status" -ne 0 ]; then',
    '        scontrol requeue "$SLURM_JOB_ID" || true  # it continues from the checkpoint',
    "        exit 75",
    "    fi",
    "fi",
    'exit "$status"',
)


def _slurm(job: Job) -> str:
    header = (
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={job.gpus_per_node}",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        "#SBATCH --output=%x-%j.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        f"#SBATCH --signal=B:TERM@{_SECONDS_TO_SAVE}",
    )
    run = _torchrun(job, _PYTHON, node='"$SLURM_NODEID"', address='"$MASTER_ADDR"', port='"$MASTER_PORT"')
    task = f'exec {run} "$@"'
    return _shell(
        job,
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)',
        "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
        "export MASTER_ADDR MASTER_PORT",
        *_BEFORE_STEP,
        f"srun --kill-on-bad-exit=1 bash -c {shlex.quote(task)} - {shlex.join(job.words)} --resume auto &",
        *_AFTER_STEP,
        header=header,
    )


def _in_folder(job: Job, why: str) -> Path:
    """The recipe's path in the job's folder; only that folder exists where the job runs."""
    recipe, folder = job.recipe.resolve(), job.folder.resolve()  # links may lead out of it
    if not recipe.is_relative_to(folder):
        raise LaunchError(
            f"lies outside this folder, {why}", where=str(job.recipe), hint="Run this in a folder above it"
        )
    return recipe.relative_to(folder)


def _kubernetes(job: Job) -> str:
    for value, option, what in (
        (job.image, "--image", "a container image that has zerokit[train]"),
        (job.volume, "--volume", "the volume claim that holds the recipe, the data and the output"),
    ):
        if value is None:
            raise LaunchError(f"needs {what}", where="--for kubernetes", hint=f"Give {option} NAME")
    run = _torchrun(job, "python", node='"$RANK"', address='"$MASTER_ADDR"', port='"$MASTER_PORT"')
    recipe = job.folder / _in_folder(job, "where --volume is mounted")
    # Kubernetes itself replaces $(NAME).
    words = [word.replace("$(", "$$(") for word in [*job.words[:-1], str(recipe)]]
    container = {
        "name": "pytorch",  # by which the operator knows it
        "image": job.image,
        "workingDir": str(job.folder),
        "command": ["bash", "-c", f'exec {run} "$@"', "-", *words],
        "resources": {"limits": {"nvidia.com/gpu": job.gpus_per_node}},
        "volumeMounts": [
            {"name": "workspace", "mountPath": str(job.folder)},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  not a temporary file
        ],
    }
    volumes = [
        {"name": "workspace", "persistentVolumeClaim": {"claimName": job.volume}},
        # A container's default has 64 MiB, too little for NCCL and data loaders.
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]

    def replicas(number: int) -> dict[str, Any]:
        spec = {"containers": [container], "volumes": volumes}
        return {"replicas": number, "restartPolicy": "Never", "template": {"spec": spec}}

    roles = {"Master": replicas(1)} | ({"Worker": replicas(job.num_nodes - 1)} if job.num_nodes > 1 else {})
    return _yaml(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": job.name},
            "spec": {"pytorchReplicaSpecs": roles},
        }
    )


def _skypilot(job: Job) -> str:
    words = [*job.words[:-1], str(_in_folder(job, "which is what SkyPilot sends"))]
    run = _torchrun(
        job, "python", node='"$SKYPILOT_NODE_RANK"', address='"$MASTER_ADDR"', port=str(DEFAULT_PORT)
    )
    return _yaml(
        {
            "name": job.name,
            "num_nodes": job.num_nodes,
            "resources": {"accelerators": f"{job.accelerator or 'H100'}:{job.gpus_per_node}"},
            "workdir": str(job.folder),
            # A clone exists on this machine only: 'workdir' is the recipe's folder.
            "setup": "# If it is cloned here: git+URL of the clone in place of the name\n"
            "pip install 'zerokit[train]'\n",
            "run": f'MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | sed -n 1p)\nexec {run} {shlex.join(words)}\n',
        }
    )


class _Dumper(yaml.SafeDumper):
    """Writes repeated values without anchors, which not every reader supports."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(data: dict[str, Any]) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=10_000)


_TARGETS: dict[LaunchTarget, Callable[[Job], str]] = {
    "deepspeed": _deepspeed,
    "torchrun": _on_each_node,
    "accelerate": _accelerate,
    "slurm": _slurm,
    "kubernetes": _kubernetes,
    "skypilot": _skypilot,
}
