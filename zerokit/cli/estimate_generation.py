"""``zerokit estimate --generate``: the modes of ``zerokit generate`` on some GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from zerokit.cli.estimate_options import SIZES, EstimateOptions, sizes
from zerokit.cli.gpu_options import chosen_gpu, memory_size, note_caveat
from zerokit.cli.output import print_json
from zerokit.errors import ConfigError
from zerokit.files import json_text, write_file
from zerokit.reporting.tables import table
from zerokit.tables import table_of
from zerokit.units import format_bytes, format_rate, quantity

if TYPE_CHECKING:
    from zerokit.memory.generation import GenerationRun
    from zerokit.reporting.terminal import Part
    from zerokit.step_time.generation import Candidate

_TABLE = table_of(__file__)
_OWN: Sequence[str] = _TABLE["own"]
_REQUIRED: Sequence[str] = _TABLE["required"]
_COLUMNS: Sequence[str] = _TABLE["columns"]


def check_generation(options: EstimateOptions) -> None:
    """Refuse options of generation without ``--generate``, and options of training with it (ConfigError)."""
    allowed = {*_OWN, *_TABLE["shared"]}
    for one in fields(options):
        is_given = one.name != "model" and getattr(options, one.name) != one.default
        where = f"--{one.name.replace('_', '-')}"
        if is_given and options.generate and one.name not in allowed:
            raise ConfigError("does not go with --generate", where=where, hint="Leave it out")
        if is_given and not options.generate and one.name in _OWN:
            raise ConfigError("is for generation", where=where, hint="Add --generate")
    for name in _REQUIRED if options.generate else ():
        if getattr(options, name) is None:
            raise ConfigError("is missing", where=f"--{name.replace('_', '-')}", hint="Say how many tokens there are")


def estimate_generation(options: EstimateOptions, *, as_json: bool) -> NoReturn:
    """Print the modes, and exit with 1 if none is possible."""
    from zerokit.config import load_ds_config
    from zerokit.estimation.api import bare_count
    from zerokit.hardware.cluster import Cluster
    from zerokit.hardware.costs.card_costs import CardCosts
    from zerokit.memory.generation import GenerationRun, zero_section
    from zerokit.models import load_model_shape
    from zerokit.step_time.generation import generation_time, judge_modes, modes_for

    number, *others = sizes(options.num_gpus, *SIZES["num_gpus"])
    if others:
        raise ConfigError("is a list", where="--num-gpus", hint="Give one number with --generate")
    gpu = chosen_gpu(options.gpu, options.gpu_memory)
    note_caveat(gpu)
    if bare_count(options.model) is not None:
        raise ConfigError("is a number", where="MODEL", hint="Name a model: the KV cache depends on its layers")
    shape = load_model_shape(options.model)
    lengths, most = (options.prompt_tokens or 1, options.new_tokens or 1), shape.max_position_embeddings
    length = max(lengths) if shape.is_encoder_decoder else sum(lengths)
    if most and length > most:
        hint = (
            f"{shape.name} has {most:,} positions for prompt {'or' if shape.is_encoder_decoder else 'and'} new tokens"
        )
        raise ConfigError(f"{length:,} tokens do not fit", where="--prompt-tokens and --new-tokens", hint=hint)
    given = None
    if options.ds_config is not None:
        given = load_ds_config(options.ds_config).dump().get("zero_optimization", {})
        if given.get("stage", 0) not in (0, 3):
            where = f"{options.ds_config} (zero_optimization.stage)"
            raise ConfigError("divides what only training has", where=where, hint="Set 3 or 0")
    host = memory_size(options.host_memory, "--host-memory")
    cluster = Cluster(number, options.gpus_per_node, gpu, host)
    is_old = gpu is not None and (gpu.capability or (8, 0)) < (8, 0)
    modes = modes_for(options.mode or "auto", given)
    run = GenerationRun(
        model=shape,
        cluster=cluster,
        mode=modes[-1],
        prompt_tokens=options.prompt_tokens or 1,
        new_tokens=options.new_tokens or 1,
        batch_size=options.batch_size or 1,
        precision=options.precision or ("fp16" if is_old else "bf16"),
        zero={**zero_section("sharded", shape.hidden_size or 1024), **_settled(given)}
        if modes[-1] != "replicated" and given
        else {},
    )
    costs = None if gpu is None or not gpu.tflops else CardCosts(cluster)
    judged = judge_modes(run, cluster.gpu_memory_bytes, costs=costs, modes=modes)
    best = judged[0]
    advice = f"no mode fits {number} such GPUs: use more or larger ones, fewer tokens, or a smaller batch"
    if best.reason and options.mode:
        advice = f"{options.mode} is not possible: {best.reason}"
    elif not best.reason:
        advice = f"use --mode {best.run.mode}"
        if best.largest_batch:
            largest = replace(best.run, batch_size=best.largest_batch)
            rate = f", about {format_rate(generation_time(largest, costs).tokens_per_second)}" if costs else ""
            advice += f" --batch-size {best.largest_batch}: the largest batch that fits{rate}"
    data = _data(run, judged, advice)
    if options.output is not None:
        write_file(options.output, json_text(data), follow_links=True)
    if as_json:
        print_json(data)
    else:
        from zerokit.reporting.terminal import show

        show(_parts(run, judged, advice))
    raise typer.Exit(int(bool(best.reason)))


def _settled(zero: Any) -> dict[str, Any]:
    return {key: value for key, value in (zero or {}).items() if value != "auto" and key != "offload_optimizer"}


def _data(run: GenerationRun, judged: Sequence[Candidate], advice: str) -> dict[str, Any]:
    from zerokit.step_time.generation import traffic_per_pass

    modes = []
    for one in judged:
        entry: dict[str, Any] = {"mode": one.run.mode, "possible": not one.reason, "reason": one.reason or None}
        entry |= {"batch_size": one.run.batch_size, "largest_batch": one.largest_batch, "nvme": one.run.nvme}
        if one.memory is not None:
            names = ("weights", "kv_cache", "workspace", "low", "high")
            entry["device"] = {f"{name}_bytes": getattr(one.memory, name) for name in names}
            entry["host"] = {"per_node_bytes": one.memory.host.needed_low_bytes}
            entry["traffic_bytes_per_token"] = traffic_per_pass(one.run) // one.run.batch_size
        modes.append(entry | ({} if one.time is None else asdict(one.time)))
    return {
        "model": {"name": run.model.name, "num_parameters": run.model.num_parameters},
        "world_size": run.cluster.world_size,
        "prompt_tokens": run.prompt_tokens,
        "new_tokens": run.new_tokens,
        "batch_size": run.batch_size,
        "precision": run.precision,
        "mode": None if judged[0].reason else judged[0].run.mode,
        "advice": advice,
        "modes": modes,
    }


def _parts(run: GenerationRun, judged: Sequence[Candidate], advice: str) -> Iterator[Part]:
    from zerokit.step_time.generation import traffic_per_pass

    yield advice[0].upper() + advice[1:]
    yield (
        f"{run.model.name} (Φ = {run.model.num_parameters:,}) on {quantity(run.cluster.world_size, 'GPU')}: "
        f"{run.precision}, {run.prompt_tokens:,} tokens of prompt and {run.new_tokens:,} new ones"
    )
    yield ""
    rows = []
    for one in judged:
        memory, time = one.memory, one.time
        if memory is None:
            rows.append((one.name, *["-"] * 8, one.reason))
            continue
        traffic = traffic_per_pass(one.run) // one.run.batch_size
        needs = map(format_bytes, (memory.weights, memory.kv_cache, memory.workspace, memory.high, traffic))
        speed = format_rate(time.tokens_per_second).split()[0] if time and not one.reason else "-"
        batches = f"{one.run.batch_size:,}", *needs, f"{one.largest_batch:,}" if one.largest_batch else "-"
        rows.append((one.name, *batches, speed, one.reason or "yes"))
    yield table("Modes of zerokit generate, the fastest first", _COLUMNS, rows)
    yield from _TABLE["notes"]
