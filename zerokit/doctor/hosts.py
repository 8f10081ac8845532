"""Compares the machines of a hostfile, over ssh and all at once."""

from __future__ import annotations

import inspect
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pydantic import BaseModel, FiniteFloat, ValidationError

from zerokit.doctor import interfaces
from zerokit.doctor.host import FINDS_ITSELF, NAME_ITS_ADDRESS
from zerokit.doctor.result import CheckResult, ok
from zerokit.doctor.scripts import run_script
from zerokit.extras import PACKAGES, package_versions, version_differences
from zerokit.tables import table_of

_PATIENCE = 30
"""Timeout in seconds for one machine."""
_WARN_SECONDS, _ERROR_SECONDS = 2.0, 60.0
"""Clock differences: logs and file times are out of order; certificates fail."""
_MOST_AT_ONCE = 32

_ASK = (
    f"{inspect.getsource(interfaces)}\n"
    + """
import json, os, socket, sys, time
from importlib import metadata
found = {}
for name in sys.argv[1].split(","):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
missing = [path for path in json.loads(sys.argv[2]) if not os.path.exists(path)]
python = sys.version.split()[0]
name = {"name": socket.gethostname(), "leads": leads_to(), "interface": asked_by()}
answer = {"time": time.time(), "python": python, "versions": found, "missing": missing, **name}
print("zerokit:" + json.dumps(answer))
"""
)


class _Answer(BaseModel):
    time: FiniteFloat
    """Seconds since 1970."""
    python: str
    versions: dict[str, str]
    missing: list[str]
    """Requested paths that do not exist."""
    name: str
    """Its host name."""
    leads: list[str]
    """Addresses that its own name resolves to."""
    interface: str | None
    """Interface of the ssh connection."""


def hosts(names: Sequence[str], paths: Sequence[str]) -> Iterator[CheckResult]:
    """Check each machine of a hostfile.

    Args:
        paths: absolute paths that each machine needs: this folder, data, model.
    """
    answers: list[_Answer] = []

    def host(name: str) -> tuple[_Answer | CheckResult, float, float]:
        begin = time.time()
        answer = _ask(name, paths)
        return answer, begin, time.time()

    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(names))) as pool:
        for name, (answer, begin, end) in zip(names, pool.map(host, names), strict=True):
            if isinstance(answer, CheckResult):
                yield answer
            else:
                answers.append(answer)
                problems = list(_problems(name, answer, max(answer.time - end, begin - answer.time, 0.0)))
                yield from problems or [ok(f"host {name}", "same versions and paths, clocks agree")]
    if len(answers) == len(names) > 1:
        yield from _interface(names, answers)


def _resolves_to_itself(answer: _Answer) -> bool:
    return any(map(interfaces.is_itself, answer.leads))


def _is_this_machine(answer: _Answer) -> bool:
    return answer.name == socket.gethostname()


def _interface(names: Sequence[str], answers: Sequence[_Answer]) -> Iterator[CheckResult]:
    """The interface that all machines should use, if a name resolves to the machine itself."""
    if not any(map(_resolves_to_itself, answers)):
        return
    others = [name for name, answer in zip(names, answers, strict=True) if not _is_this_machine(answer)]
    # This machine's own name may resolve to itself for ssh too.
    used = {interfaces.reaching(others[0]) if _is_this_machine(one) and others else one.interface for one in answers}
    first = next(iter(used))
    if len(used) == 1 and first is not None and first != "lo":
        # NCCL treats a name without "=" as a prefix; gloo's is exact.
        variables = {"GLOO_SOCKET_IFNAME": first, "NCCL_SOCKET_IFNAME": f"={first}"}
        message = f"all machines reach each other by {first}; 'launch-script --doctor FILE' makes a run use it"
        yield CheckResult("interface", "ok", message, variables=variables)


def _problems(name: str, answer: _Answer, away: float) -> Iterator[CheckResult]:
    """Problems of a machine whose clock is `away` seconds off."""
    what = f"host {name}"
    if away > _WARN_SECONDS:
        message = f"its clock is off by {away:.0f} s"
        fix = "Set it: timedatectl set-ntp true, or chronyc makestep"
        yield CheckResult(what, "error" if away > _ERROR_SECONDS else "warning", message, fix)
    own = {"python": sys.version.split()[0], **package_versions()}
    theirs = {"python": answer.python, **answer.versions}
    if others := version_differences(theirs, own, "here"):
        fix = "Install the same on all: pip freeze here, pip install -r there"
        yield CheckResult(what, "error", f"has other versions: {others}", fix)
    if answer.missing:
        message = f"lacks {', '.join(answer.missing)}"
        yield CheckResult(what, "error", message, "Copy it there, or mount the same folder on all machines")
    if _resolves_to_itself(answer) and not _is_this_machine(answer):  # host.network reports it for this machine
        message = f"its name '{answer.name}' leads to {', '.join(answer.leads)} there, {FINDS_ITSELF}"
        yield CheckResult(what, "error", message, NAME_ITS_ADDRESS)


_SSH_FIXES: Mapping[str, str] = table_of(__file__)
"""Words of ssh (OpenSSH ssh.c, sshconnect.c, and libc's errors) -> what to do."""


def _ask(name: str, paths: Sequence[str]) -> _Answer | CheckResult:
    what = f"host {name}"
    try:
        found = run_script(_ASK, ",".join(PACKAGES), json.dumps(list(paths)), patience=_PATIENCE, host=name)
    except FileNotFoundError:
        return CheckResult(what, "error", "no ssh on this machine", "apt install openssh-client, or start without ssh")
    except subprocess.TimeoutExpired:
        fix = f"Try: ssh -o BatchMode=yes {name} true"
        return CheckResult(what, "error", f"ssh did not answer in {_PATIENCE} s", fix)
    with suppress(ValidationError):
        return _Answer.model_validate(found.value, strict=True)
    if found.exit_code == 255:
        fix = next((fix for words, fix in _SSH_FIXES.items() if words in found.error), "Find out why")
        fix += f", then try: ssh -o BatchMode=yes {name} true"
        return CheckResult(what, "error", f"ssh does not reach it: {found.error}", fix)
    fix = "Give all machines the same environment at the same path"
    return CheckResult(what, "error", f"{sys.executable} does not run there: {found.error}", fix)
