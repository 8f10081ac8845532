"""`zerokit.rehearse`: rehearse a script on GPUs that are not there, from Python."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ParamSpec, get_args, get_type_hints

from zerokit.choices import Launcher
from zerokit.documents import is_file, is_folder, path_exists
from zerokit.errors import ZerokitError, check_choice
from zerokit.files import check_writable
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import Gpu, some_gpu
from zerokit.hardware.hardware_file import read_hardware
from zerokit.rehearsal.devices import DEFAULT, caveats, virtual_device
from zerokit.rehearsal.job import Overrides, RehearsalJob
from zerokit.rehearsal.options import DRAWINGS, RehearsalOptions, RunOptions, described
from zerokit.rehearsal.parent.processes import Output
from zerokit.rehearsal.parent.start import rehearse_and_report
from zerokit.rehearsal.report.drawings import Drawings
from zerokit.rehearsal.report.report import RehearsalReport
from zerokit.rehearsal.scratch import scratch_folder
from zerokit.rehearsal.stand_ins.packages import packages_named
from zerokit.rehearsal.watching.overrides import check_overrides
from zerokit.rehearsal.worker.launchers import no_such_module
from zerokit.reporting.page import check_picture
from zerokit.stop_signals import exit_on_signals
from zerokit.validation import bind_arguments, check_types

_P = ParamSpec("_P")


def _with_options_of(
    options: Callable[_P, RehearsalOptions],
) -> Callable[[Callable[[RehearsalOptions], RehearsalReport]], Callable[_P, RehearsalReport]]:
    """Have a function accept the options one by one, with their signature and help."""

    def decorate(run: Callable[[RehearsalOptions], RehearsalReport]) -> Callable[_P, RehearsalReport]:
        signature = inspect.signature(options)

        @functools.wraps(run)
        def accept(*arguments: _P.args, **given: _P.kwargs) -> RehearsalReport:
            bound = bind_arguments(run.__name__, signature, *arguments, **given)
            check_types(bound.arguments, get_type_hints(RehearsalOptions))
            return run(options(*arguments, **given))

        lines = "".join(f"    {name}: {one['help']}\n" for name, (_, one) in described(RehearsalOptions).items())
        accept.__doc__ = inspect.cleandoc(run.__doc__ or "") + f"\n\nArgs:\n{lines}"
        accept.__signature__ = signature  # type: ignore[attr-defined]
        return accept

    return decorate


@_with_options_of(RehearsalOptions)
def rehearse(options: RehearsalOptions) -> RehearsalReport:
    """Run a training script on virtual GPUs, in processes of its own, and report its memory.

    ::

        report = zerokit.rehearse("train.py", ["--deepspeed", "zero3.json"], num_gpus=64, gpu="H100")
        report.ok, report.device.peak_bytes, report.fit.verdict

    Raises:
        ZerokitError: an option is wrong, or the script failed (its traceback is printed), or ended without a
            DeepSpeed engine or an optimizer step, or the rehearsal lacks a stand-in.
    """
    _check(options)
    cluster = Cluster(options.num_gpus, options.gpus_per_node, host_bytes=options.host_memory_bytes)
    cluster.check_nodes()
    card, figures = _card(options, cluster)
    cluster = replace(cluster, gpu=card)
    if options.rank is not None:
        cluster.check_rank(options.rank)
    assumed = caveats(card)
    if options.time and options.gpu is None and options.hardware is None:
        assumed.append(f"times are those of an {DEFAULT}, as no card is given: name yours with --gpu")

    def complete(report: RehearsalReport) -> RehearsalReport:
        return report.model_copy(update={"warnings": [*report.warnings, *assumed]})

    with exit_on_signals(), scratch_folder() as folder:
        job = _job(options, card, figures, folder)
        _ = job.costs  # raises here, before a worker starts, if the speed of the card is not known
        report = rehearse_and_report(
            job,
            cluster,
            Drawings(**{name: getattr(options, name) for name in DRAWINGS}),
            advise=options.advise,
            timeout=options.timeout,
            output=Output.SHOWN_ON_STDERR if options.script_prints_on == "stderr" else Output.SHOWN,
            show=lambda first: options.show(complete(first)),
        )
    return complete(report)


def _job(options: RehearsalOptions, card: Gpu, figures: dict[str, Any] | None, folder: Path) -> RehearsalJob:
    """The job of the first rank, with its files in `folder`."""
    shared = {one.name: getattr(options, one.name) for one in fields(RunOptions)}
    config = options.accelerate_config
    if config is not None or options.accelerate_arguments:
        shared["launcher"] = "accelerate"
    shared |= {"script": str(options.script), "arguments": list(options.arguments)}
    shared["accelerate_arguments"] = list(options.accelerate_arguments)
    shared["accelerate_config"] = None if config is None else str(Path(config).absolute())
    changes = options.ds_config_overrides
    return RehearsalJob(
        **shared,
        rank=options.rank or 0,
        steps=(3 if options.time else 2) if options.steps is None else options.steps,
        device=virtual_device(card),
        timed_on=card if options.time else None,
        figures=figures,
        real_time=options.real_time,
        overrides=Overrides(ds_config=dict(changes)) if changes else Overrides(),
        has=packages_named(options.has),
        cwd=str(Path.cwd()),
        exchange_folder=str(folder / "exchange") if options.rank is None and options.num_gpus > 1 else None,
        recording_file=str(folder / f"rank-{options.rank or 0}.npz"),
    )


def _check(options: RehearsalOptions) -> None:
    """Refuse options that are wrong by themselves."""
    _check_script(options.script, options.module)
    _check_launcher(options)
    if options.ds_config_overrides:
        check_overrides(options.ds_config_overrides)
    if options.timeout is not None and options.timeout <= 0:
        raise ZerokitError(f"{options.timeout:g} seconds are none", where="--timeout", hint="Give more than 0")
    if options.network_gbit_s is not None and options.network_gbit_s <= 0:
        message = f"{options.network_gbit_s:g} Gbit/s are no network"
        raise ZerokitError(message, where="--network", hint="Write it like 400Gbit")
    for name, zero in (("steps", "runs the script to its end"), ("scan_seconds", "skips the search")):
        if (value := getattr(options, name)) is not None and value < 0:
            raise ZerokitError(f"{name} is {value}", hint=f"Give 0 or more; 0 {zero}")
    for name in DRAWINGS:
        if (file := getattr(options, name)) is not None:
            if name in ("plot", "timeline"):
                check_picture(file, f"--{name}")
            check_writable(Path(file), follow_links=True)
    only_timed = {
        "--real-time": options.real_time,
        "--timeline": options.timeline,
        "--network": options.network_gbit_s,
    }
    for option, given in only_timed.items():
        if given and not options.time:
            raise ZerokitError("there is no virtual time", where=option, hint="Add --time")


def _card(options: RehearsalOptions, run: Cluster) -> tuple[Gpu, dict[str, Any] | None]:
    """The card to rehearse, and the figures of a file.

    Raises:
        ZerokitError: the card is not known, the file is wrong, or both are given.
    """
    memory_bytes = options.gpu_memory_bytes
    if options.hardware is None:
        card = some_gpu(options.gpu or DEFAULT, memory_bytes, timed=options.time)
        assert card is not None
        return card, None
    if options.gpu is not None:
        raise ZerokitError("the file names the card", where="--hardware", hint="Leave out --gpu")
    found = read_hardware(options.hardware, timed=options.time, run=run)
    return found.gpu if memory_bytes is None else found.gpu.with_memory(memory_bytes), dict(found.figures)


def _check_script(script: str | Path, module: bool) -> None:
    path = Path(script)
    if module:
        _check_module(str(script))
    elif is_folder(path):
        raise ZerokitError("is a folder", where=script, hint="Name the Python file in it that trains")
    elif not path_exists(path):
        hint = "Name a Python file, after all options of zerokit rehearse"
        raise ZerokitError("no such script", where=script, hint=hint)
    elif path.suffix not in ("", ".py", ".pyw", ".pyc"):
        hint = "Name the Python file that trains; what follows it is its own"
        raise ZerokitError(f"is no Python script, but a {path.suffix} file", where=script, hint=hint)


def _check_module(name: str) -> None:
    """Refuse what cannot be one; whether a package has such a module is seen when the package is imported."""
    if name.endswith(".py") and is_file(Path(name)):
        raise ZerokitError("is a file, not the name of a module", where=f"-m {name}", hint="Leave out -m")
    if not all(part.isidentifier() for part in name.split(".")):
        raise ZerokitError("is not the name of a module", where=name, hint="Write it like package.train")
    package = name.partition(".")[0]
    here = PathFinder.find_spec(package, [str(Path.cwd())])
    if here is None and package not in sys.modules and find_spec(package) is None:
        raise no_such_module(name)


def _check_launcher(options: RehearsalOptions) -> None:
    check_choice("launcher", options.launcher, get_args(Launcher))
    config = options.accelerate_config
    if options.launcher == "deepspeed" and (config is not None or options.accelerate_arguments):
        raise ZerokitError(
            "is an option of accelerate, and the launcher is deepspeed",
            where="--accelerate-arguments" if config is None else "--accelerate-config",
            hint="Leave one of the two options out",
        )
    if config is not None and not is_file(Path(config)):
        raise ZerokitError("no such file", where=config, hint="accelerate config writes one")
