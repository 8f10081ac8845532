"""All looks at the machines of a run, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zerokit.choices import DEFAULT_PORT, OUTPUT_DIR
from zerokit.doctor import host, hosts, software, speed
from zerokit.doctor.look import Look
from zerokit.documents import is_there


@dataclass(frozen=True)
class Needs:
    """What a run asks of its machines."""

    output: Path = Path(OUTPUT_DIR)
    paths: tuple[Path, ...] = ()
    """That must be there on every machine: data, model."""
    offloads_optimizer: bool = False
    uses_nvme: bool = False
    port: int = DEFAULT_PORT


def examine(
    needs: Needs, machines: Mapping[str, int] | None = None, *, measures: bool = False
) -> Iterator[Look]:
    """Look at this machine, and at those of a hostfile.

    Args:
        needs: of the run.
        machines: of a hostfile, with the ranks of each; None: this one alone.
        measures: whether ranks are started, which measure how fast they are.
    """
    yield from software.packages()
    answer = software.ask_torch()
    yield from software.gpus(answer)
    # Ranks on the CPU compile how they communicate; an offloaded optimizer and what reads from NVMe are
    # compiled everywhere.
    on_cpu = isinstance(answer, dict) and not answer["gpus"]
    yield from software.compiler(needed=on_cpu or needs.offloads_optimizer or needs.uses_nvme)
    yield from software.locks()
    if needs.uses_nvme:
        yield software.libaio()
    yield host.shared_memory()
    yield from host.limits()
    yield host.memory()
    yield from host.disk(needs.output)
    yield from _paths(needs)
    yield host.network(several=machines is not None and len(machines) > 1)
    yield host.port(needs.port)
    if machines is not None:
        paths = [str(path.absolute()) for path in (Path.cwd(), *needs.paths)]
        yield from hosts.hosts(list(machines), paths)
    if measures and isinstance(answer, dict):
        yield from speed.speed(machines, len(answer["gpus"]), needs.port)


def _paths(needs: Needs) -> Iterator[Look]:
    for path in needs.paths:
        if not is_there(path):
            yield Look(
                "paths", "error", f"{path} is not there", "Mend its name in the recipe, or copy it here"
            )
