"""Runs all checks of the machines of a run, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zerokit.choices import DEFAULT_PORT, OUTPUT_DIR
from zerokit.doctor import host, hosts, software, speed
from zerokit.doctor.result import CheckResult, ok
from zerokit.documents import path_exists
from zerokit.errors import ModelError
from zerokit.models.hub_config import ask_hub, has_cached_weights


@dataclass(frozen=True)
class Needs:
    output: Path = Path(OUTPUT_DIR)
    paths: tuple[Path, ...] = ()
    """Paths that must exist on every machine: data, model."""
    hub_model: str | None = None
    """The model's Hub id, if it is not in `paths`."""
    revision: str | None = None
    """Revision of `hub_model`; None: its main branch."""
    offloads_optimizer: bool = False
    uses_nvme: bool = False
    port: int = DEFAULT_PORT


def run_checks(
    needs: Needs, machines: Mapping[str, int] | None = None, *, measures: bool = False
) -> Iterator[CheckResult]:
    """Check this machine, and those of a hostfile.

    Args:
        machines: of a hostfile, with the ranks of each; None: only this one.
        measures: whether to start ranks that measure their speed.
    """
    yield from software.packages()
    answer = software.ask_torch()
    yield from software.gpus(answer)
    # Ranks on the CPU compile their communication; CPU Adam and NVMe offload are compiled everywhere.
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
        if not path_exists(path):
            yield CheckResult(
                "paths", "error", f"{path} does not exist", "Fix its name in the recipe, or copy it here"
            )


def _on_hub(model: str, revision: str | None) -> CheckResult:
    """Check that this machine can load a model's weights, from the cache or from the Hub.

    A request for config.json tests network, name, token and licence. The cache may have only that file,
    because estimates download it.
    """
    if has_cached_weights(model, revision):
        return ok("model", f"the weights of {model} are in the Hub's cache")
    try:
        ask_hub(model, revision)
    except ModelError as error:
        return CheckResult("model", "error", error.message, error.hint)
    return ok("model", f"the Hub gives access to {model}")
