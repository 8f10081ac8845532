"""A card that the catalogue does not have, or figures other than its own, from a file.

    {"gpu": {"name": "X1", "nominal_gb": 64, "bandwidth_gb_s": 3000, "tflops": {"bf16": 500, "fp32": 50},
             "link": {"name": "NVLink4 NVSwitch", "gb_s": 450}},
     "figures": {"launch": {"seconds": {"kernel": 8e-6}}}}

``gpu`` is a card as in `gpus.json`, or the name of one; ``figures`` are parts of `costs/figures.json`;
``kernels`` are curves of the card's own, as `zerokit calibrate` fits them.
"""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from zerokit.documents import Document, KeyPath, read_document
from zerokit.errors import DocumentError, did_you_mean
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.attention import AttentionCurve
from zerokit.hardware.costs.figures import figures
from zerokit.hardware.costs.matmul import KNOTS, LAYOUTS, MatmulCurve
from zerokit.hardware.gpus import Gpu, bounds, find_gpu
from zerokit.units import quantity

_DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp8")
_LEAST_SHARE, _MOST_WORK = -20, 10_000
"""Bounds of a curve: logarithm of a share of the peak; multiple of the time at the peak."""
_LEAST_OF_NOMINAL, _MOST_OF_NOMINAL = 0.75, 1.1
"""Range of reported over nominal memory; of all cards 0.91 to 1."""
_WRITTEN_CURVES = "'zerokit calibrate' writes these curves"
_KEYS = ("gpu", "figures", "kernels")
_FACTOR = 1000
"""Factor between a file's number and known ones; beyond it the unit is wrong. A tenth is allowed for
processors used as cards."""


@dataclass(frozen=True)
class Hardware:
    """Content of a hardware file."""

    gpu: Gpu
    figures: Mapping[str, Any] = field(hash=False)
    """`figures.json` with the file's changes."""


_Dtype = Literal["bf16", "fp16", "tf32", "fp32", "fp8"]


@dataclass(frozen=True)
class OwnKernels:
    """Curves of a card that replace those of its generation."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    matmul: Mapping[_Dtype, MatmulCurve] = field(default_factory=dict)
    attention: Mapping[_Dtype, AttentionCurve] = field(default_factory=dict)


def read_hardware(path: str | Path, *, timed: bool = False, run: Cluster | None = None) -> Hardware:
    """Read a hardware file, JSON or YAML.

    Args:
        timed: whether it must have the card's speed.
        run: its number of GPUs and GPUs per node.

    Raises:
        DocumentError: it cannot be read, has an unknown key, a number in a wrong unit, no speed although
            needed, or a node with too few GPUs.
        ZerokitError: there is no such card.
    """
    document = read_document(path)
    hardware = hardware_of(document)
    missing = [name for name in ("bandwidth_gb_s", "tflops") if timed and not getattr(hardware.gpu, name)]
    if missing:
        raise DocumentError(
            f"there is no time without {' and '.join(missing)} of {hardware.gpu.name}",
            where=document.where(("gpu",)),
            hint="Give them as in gpus.json",
        )
    node = hardware.gpu.node if isinstance(document.data["gpu"], dict) else None
    if node is not None and run is not None and node.gpus < run.local_ranks:
        fills_nodes = run.world_size % node.gpus == 0
        more = "" if fills_nodes else f" with a --num-gpus that is a multiple of {node.gpus}"
        raise DocumentError(
            f"a node has {quantity(node.gpus, 'GPU')}, and the run {run.local_ranks} on each",
            where=document.where(("gpu", "node", "gpus")),
            hint=f"Say --gpus-per-node {node.gpus}{more}, or correct the file",
        )
    return hardware


def hardware_of(document: Document) -> Hardware:
    """The content of a parsed file. Raises as :func:`read_hardware`."""
    data = document.data
    if not isinstance(data, dict) or "gpu" not in data:
        raise DocumentError("has no card", where=document.where(), hint='Begin with {"gpu": {"name": ...}}')
    for key in data.keys() - set(_KEYS):
        raise DocumentError(
            f"there is no key '{key}'", where=document.where((key,)), hint=did_you_mean(str(key), _KEYS)
        )
    gpu = find_gpu(data["gpu"]) if isinstance(data["gpu"], str) else _gpu(document)
    changed = copy.deepcopy(figures())
    _change(changed, data.get("figures", {}), ("figures",), document, gpu.name)
    _check_ranges(changed, document)
    if "kernels" in data:
        changed["kernels"] = _kernels(document)
    return Hardware(gpu, changed)


def _gpu(document: Document) -> Gpu:
    gpu: Gpu = _parse_section("gpu", Gpu, document, "Write it as in gpus.json")
    _check_units(document.data["gpu"], ("gpu",), document)
    for dtype in gpu.tflops.keys() - set(_DTYPES):
        where, hint = document.where(("gpu", "tflops", dtype)), did_you_mean(dtype, _DTYPES)
        raise DocumentError(f"there is no dtype '{dtype}'", where=where, hint=hint)
    if gpu.memory_mib is None and not gpu.nominal_gb:
        raise DocumentError("its memory is missing", where=document.where(("gpu",)), hint='Give "nominal_gb"')
    _check_memory(gpu, document)
    return gpu


def _check_memory(gpu: Gpu, document: Document) -> None:
    """Refuse two memory sizes that contradict each other."""
    if gpu.memory_mib is None or not gpu.nominal_gb:
        return
    share = gpu.memory_mib / (1024 * gpu.nominal_gb)
    if not _LEAST_OF_NOMINAL <= share <= _MOST_OF_NOMINAL:
        raise DocumentError(
            f"{gpu.memory_mib:g} MiB are not the memory of a card of {gpu.nominal_gb:g} GB",
            where=document.where(("gpu", "memory_mib")),
            hint="Give what torch reports of it, or leave memory_mib out",
        )


def _kernels(document: Document) -> dict[str, Any]:
    """Curves of matmul and attention by dtype."""
    own: OwnKernels = _parse_section("kernels", OwnKernels, document, _WRITTEN_CURVES)
    for dtype, curve in own.matmul.items():
        sides = [curve.shorter, curve.longer, curve.depth]
        is_whole = all(len(side) == len(KNOTS) for side in sides) and curve.layouts.keys() == set(LAYOUTS)
        values = [*sum(sides, ()), *curve.layouts.values()]
        _check_curve(is_whole, values, (_LEAST_SHARE, 1), ("kernels", "matmul", dtype), document)
    for dtype, costs in own.attention.items():
        passes = [costs.forward, costs.backward]
        is_whole = all(len(one) == len(AttentionCurve.terms()) and one[0] > 0 for one in passes)
        _check_curve(is_whole, sum(passes, ()), (0, _MOST_WORK), ("kernels", "attention", dtype), document)
    return {name: value for name, value in asdict(own).items() if value}


def _parse_section(key: str, kind: type, document: Document, hint: str) -> Any:
    """A section of the file as a dataclass. DocumentError if it has another form."""
    from pydantic import TypeAdapter, ValidationError

    try:
        # Strict, so that strings are no numbers; from JSON, so that lists become tuples.
        text = json.dumps(_with_text_keys(document.data[key]), default=str)
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        is_key = first["loc"][-1:] == ("[key]",)  # pydantic's name of a key that is not among the choices
        where = document.where((key, *first["loc"][: -1 if is_key else None]))
        is_unknown = first["type"] == "unexpected_keyword_argument"
        message = "there is no such key" if is_unknown else first["msg"]
        raise DocumentError(message, where=where, hint=hint) from None


def _check_curve(
    is_whole: bool, values: Sequence[float], bounds: tuple[float, float], path: KeyPath, document: Document
) -> None:
    if not is_whole or not all(bounds[0] <= value <= bounds[1] for value in values):
        raise DocumentError("is not a curve", where=document.where(path), hint=_WRITTEN_CURVES)


def _with_text_keys(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(key): _with_text_keys(value) for key, value in data.items()}
    return [_with_text_keys(value) for value in data] if isinstance(data, list) else data


def _check_units(data: Any, path: KeyPath, document: Document) -> None:
    if isinstance(data, dict):
        for key, value in data.items():
            _check_units(value, (*path, key), document)
    elif isinstance(data, list):
        for value in data:
            _check_units(value, path, document)
    elif isinstance(data, int | float):
        name = "tflops" if path[-2] == "tflops" else str(path[-1])
        low, high, *unit = bounds()[name]
        if not low <= data <= high:
            raise DocumentError(
                f"{_shown(data)} is not plausible for any card",
                where=document.where(path),
                hint=f"Give it {f'in {unit[0]}: ' if unit else 'as '}{low:g} to {high:,}",
            )


def _shown(number: float) -> str:
    return f"{max(min(number, 1e300), -1e300):g}"  # integers may be larger than floats


def _change(target: dict[str, Any], changes: Any, path: KeyPath, document: Document, gpu: str) -> None:
    """Replace known numbers by those of a file."""
    if not isinstance(changes, dict):
        raise DocumentError("is not a section of figures", where=document.where(path), hint="As in figures.json")
    for key, value in changes.items():
        here = (*path, key)
        if key not in target and not (path[-1] == "cards" and key == gpu):
            raise DocumentError(
                f"there is no figure '{key}'", where=document.where(here), hint=did_you_mean(str(key), tuple(target))
            )
        known = target.get(key)
        if isinstance(known, dict):
            if path[-1] == "cards" and key == gpu and isinstance(value, dict):
                # The file may have numbers of this card that are known of other cards only.
                new = {name: one for name, one in value.items() if name not in known}
                known |= _of_own_card(target, new, here, document)
            _change(known, value, here, document, gpu)
        elif key in target:
            target[key] = _like(known, value, here, document)
        else:
            target[key] = _of_own_card(target, value, here, document)


def _check_ranges(changed: Mapping[str, Any], document: Document) -> None:
    """Refuse factors below their minimum, and ranges without their value."""
    beside, launch = changed["beside_collective"], changed["launch"]
    ranges: list[tuple[KeyPath, tuple[float, ...]]] = [
        (("figures", "beside_collective"), (1, beside["low"], beside["value"], beside["high"])),
        (("figures", "launch"), (launch["low"], 1, launch["high"])),
    ]
    for kind, spreads in changed["spread"].items():
        if isinstance(spreads, dict):
            ranges += [(("figures", "spread", kind, name), (low, 1, high)) for name, (low, high) in spreads.items()]
    for path, figures_in_order in ranges:
        if list(figures_in_order) != sorted(figures_in_order):
            raise DocumentError(
                f"these do not rise: {', '.join(map(_shown, figures_in_order))}",
                where=document.where(path),
                hint="A lowest factor is at most 1 and a highest at least 1; beside a collective nothing is "
                "faster, and the value lies between low and high",
            )


def _of_own_card(others: Mapping[str, Any], value: Any, path: KeyPath, document: Document) -> Any:
    """A number, or several, as other cards have it."""
    if not isinstance(next(iter(others.values())), dict):
        return _like(statistics.median(others.values()), value, path, document)
    known = {
        name: statistics.median(one[name] for one in others.values() if name in one)
        for names in others.values()
        for name, number in names.items()
        if isinstance(number, float | int)
    }
    if not isinstance(value, dict):
        raise DocumentError("is not a section of figures", where=document.where(path), hint=f"Of {sorted(known)}")
    for name in value.keys() - known.keys():
        hint = did_you_mean(str(name), sorted(known))
        raise DocumentError(f"there is no figure '{name}'", where=document.where((*path, name)), hint=hint)
    return {name: _like(known[name], one, (*path, name), document) for name, one in value.items()}


def _like(known: Any, value: Any, path: KeyPath, document: Document) -> Any:
    """`value` if it has the form of `known`: a positive number, a string, or a list of equal length."""
    where = document.where(path)
    if isinstance(known, int | float):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise DocumentError(f"{value!r} is no figure", where=where, hint=f"Give a number above 0, such as {known}")
        if not known / _FACTOR / 10 <= value <= known * _FACTOR:
            message = f"{_shown(value)} is far from what is known: {known:g}"
            raise DocumentError(message, where=where, hint="Give it in the unit of figures.json")
        if value > 1 and any("share" in str(key) for key in path):
            raise DocumentError(f"{value!r} is no share", where=where, hint="Give 1 at most, for all of it")
    elif isinstance(known, list) and isinstance(value, list) and len(known) == len(value):
        return [_like(*both, path, document) for both in zip(known, value, strict=True)]
    elif not isinstance(known, str) or not isinstance(value, str):
        hint = f"It is written like {json.dumps(known)[:80]}"
        raise DocumentError("does not have the figure's form", where=where, hint=hint)
    return value
