"""All looks at the machines of a run, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zerokit.choices import DEFAULT_PORT, OUTPUT_DIR
from zerokit.doctor import host, hosts, software, speed
from zerokit.doctor.result import CheckResult, ok
from zerokit.documents import is_there
from zerokit.errors import ModelError
from zerokit.models.hub_config import ask_hub, has_cached_weights


@dataclass(frozen=True)
class Needs:
    """What a run asks of its machines."""

    output: Path = Path(OUTPUT_DIR)
    paths: tuple[Path, ...] = ()
    """That must be there on every machine: data, model."""
    hub_model: str | None = None
    """The model's name on the Hub, if it is not in `paths`."""
    revision: str | None = None
    """Of `hub_model`; None: its main branch."""
    offloads_optimizer: bool = False
    uses_nvme: bool = False
    port: int = DEFAULT_PORT


def run_checks(
    needs: Needs, machines: Mapping[str, int] | None = None, *, measures: bool = False
) -> Iterator[CheckResult]:
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
    if needs.hub_model is not None:
        yield _on_hub(needs.hub_model, needs.revision)
    yield host.network(several=machines is not None and len(machines) > 1)
    yield host.port(needs.port)
    if machines is not None:
        paths = [str(path.absolute()) for path in (Path.cwd(), *needs.paths)]
        yield from hosts.hosts(list(machines), paths)
    if measures and isinstance(answer, dict):
        yield from speed.speed(machines, len(answer["gpus"]), needs.port)


def _paths(needs: Needs) -> Iterator[CheckResult]:
    for path in needs.paths:
        if not is_there(path):
            yield CheckResult(
                "paths", "error", f"{path} is not there", "Fix its name in the recipe, or copy it here"
            )


def _on_hub(model: str, revision: str | None) -> CheckResult:
    """Whether this machine gets at a model's weights: they are in the cache, or the Hub may be asked.

    It is asked for the model's first file, which takes the network, the name, a token and the licence. That
    file may be in the cache of a machine that gets no others: zerokit's own estimates download it.
    """
    if has_cached_weights(model, revision):
        return ok("model", f"the weights of {model} are in the Hub's cache")
    try:
        ask_hub(model, revision)
    except ModelError as error:
        return CheckResult("model", "error", error.message, error.hint)
    return ok("model", f"the Hub gives {model}")
