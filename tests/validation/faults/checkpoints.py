"""Checkpoints as DeepSpeed saves them, written without torch, and what can be wrong in them."""

from __future__ import annotations

import io
import json
import math
import pickle
import random
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.validation.faults.damage import ODD, Write, distorted, mangled, special

RANKS = 2
_SIZES = {"Float": 4, "BFloat16": 2, "Long": 8}


@dataclass(frozen=True)
class Global:
    """A name that a pickle has its reader import."""

    module: str
    name: str

    def __call__(self) -> None:
        """What is called while it is written."""


@dataclass(frozen=True)
class Call:
    """What a pickle has its reader call."""

    function: Global
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Storage:
    kind: str
    numel: int
    key: str


@dataclass
class Tensor:
    """One of zeros; `claims` is its storage's number of elements as the pickle has it."""

    shape: tuple[int, ...]
    kind: str = "Float"
    stride: tuple[int, ...] | None = None
    offset: int = 0
    claims: int | None = None


class _Pickler(pickle._Pickler):
    """Python's own pickler, which can be told how to write what is not there."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 2)
        self.storages: list[int] = []

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Storage):
            return None
        return "storage", Global("torch", f"{obj.kind}Storage"), obj.key, "cpu", obj.numel

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Global):
            self.write(b"c%s\n%s\n" % (obj.module.encode(), obj.name.encode()))
        elif isinstance(obj, Call):
            self.save_reduce(obj.function, obj.arguments)
        elif isinstance(obj, Tensor):
            numel = math.prod(obj.shape)
            storage = Storage(obj.kind, numel if obj.claims is None else obj.claims, str(len(self.storages)))
            self.storages.append(numel * _SIZES[obj.kind])
            strides = [math.prod(obj.shape[place + 1 :]) for place in range(len(obj.shape))]
            stride = tuple(strides) if obj.stride is None else obj.stride
            arguments = (storage, obj.offset, obj.shape, stride, False, {})
            self.save_reduce(Global("torch._utils", "_rebuild_tensor_v2"), arguments)
        else:
            super().save(obj, save_persistent_id)


def archive(name: str, content: Any, *, filled_with: int = 0) -> bytes:
    """What `torch.save` writes to a file of that name, with tensors of one byte."""
    pickled = io.BytesIO()
    pickler = _Pickler(pickled)
    pickler.dump(content)
    storages = {f"data/{key}": bytes([filled_with]) * size for key, size in enumerate(pickler.storages)}
    return zipped(name, {"data.pkl": pickled.getvalue(), "byteorder": b"little", **storages})


def zipped(name: str, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of members as they are given."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", compression) as file:
        for member, content in members.items():
            file.writestr(f"{name.removesuffix('.pt')}/{member}", content)
    return written.getvalue()


_SHAPES = {"model.embed_tokens.weight": (320, 8), "model.norm.weight": (8,)}


def states(stage: int, step: int) -> dict[str, Any]:
    """What the files of a step hold, by their names, of `RANKS` ranks."""
    numel = sum(math.prod(shape) for shape in _SHAPES.values())
    divided = stage == 3
    model = {
        "module": {name: Tensor((0,) if divided else shape, "BFloat16") for name, shape in _SHAPES.items()},
        "buffer_names": [],
        "param_shapes": [dict(_SHAPES)],
        "shared_params": {"lm_head.weight": "model.embed_tokens.weight"},
        "dp_world_size": RANKS,
        "global_steps": step,
        "ds_version": "0.19.8",
    }
    key = "fp32_flat_groups" if divided else "single_partition_of_fp32_groups"
    each = Tensor((numel // RANKS,))
    optimizer = {
        "zero_stage": stage,
        "partition_count": RANKS if divided else [RANKS],
        key: [each],
        "base_optimizer_state": {"state": {0: {"step": step, "exp_avg": each}}, "param_groups": [{"lr": 1e-3}]},
    }
    prefixes = [f"zero_pp_rank_{rank}_" for rank in range(RANKS)]
    return {
        **{f"{prefix if divided else ''}mp_rank_00_model_states.pt": model for prefix in prefixes},
        **{f"{prefix}mp_rank_00_optim_states.pt": {"optimizer_state_dict": optimizer} for prefix in prefixes},
    }


def checkpoint(folder: str, stage: int, step: int) -> dict[str, Write]:
    """The files of a step."""
    return {f"{folder}/{name}": archive(name, content) for name, content in states(stage, step).items()}


def bad_run(random_: random.Random) -> tuple[str, dict[str, Write]]:
    """The folder of a step, and the files of a run with a sound checkpoint and one of which files are bad."""
    stage = random_.choice([1, 2, 3])
    kind, step = random_.choice(["global_step{}", "checkpoint-{}"]), random_.choice([2, 10])
    bad = f"run/{kind.format(step)}"
    files: dict[str, Write] = {
        "run/config.json": json.dumps({"model_type": "llama", "vocab_size": 320}).encode(),
        **checkpoint(f"run/{kind.format(5)}", stage, 5),
        **checkpoint(bad, stage, step),
    }
    if random_.random() < 0.3:
        files["run/latest"] = random_.choice(_LATEST) if random_.random() < 0.8 else special(random_)
    if random_.random() < 0.2:
        files["run/trainer_state.json"] = random_.choice(_STATES) if random_.random() < 0.7 else special(random_)
    if random_.random() < 0.15:
        files[f"{bad}/{random_.choice(_STRAY_NAMES)}"] = b"x"
    if random_.random() < 0.1:
        files["run/config.json"] = special(random_)
    contents = states(stage, step)
    for name in random_.sample([*contents], random_.randint(1, 2)):
        files[f"{bad}/{name}"] = _bad_archive(name, contents[name], random_)
    return bad, files


def _bad_archive(name: str, content: Any, random_: random.Random) -> Write:
    chance = random_.random()
    if chance < 0.15:
        return special(random_)
    if chance < 0.35:
        return mangled(archive(name, content), random_)
    if chance < 0.5:
        return random_.choice(_HOSTILE)(name)
    if chance < 0.6:
        return archive(name, _with_odd_tensors(content, random_))
    return archive(name, distorted(content, random_))


def _with_odd_tensors(content: Any, random_: random.Random) -> Any:
    """The content, with one odd number in some tensors."""
    if isinstance(content, dict):
        return {key: _with_odd_tensors(value, random_) for key, value in content.items()}
    if isinstance(content, list):
        return [_with_odd_tensors(value, random_) for value in content]
    if not isinstance(content, Tensor) or random_.random() < 0.5:
        return content
    odd = random_.choice([-1, 2**63, 10**30, 0, None, "x", 1.5])
    made = Tensor(content.shape, content.kind)
    setattr(made, *random_.choice([("stride", (odd,)), ("offset", odd), ("claims", odd), ("stride", (1,) * 2000)]))
    return made


def _deep(name: str) -> bytes:
    return zipped(name, {"data.pkl": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."})


def _same_hash(name: str) -> bytes:
    """A dict whose keys, integers that differ by 2**61 - 1, have one hash."""
    keys = (pickle.dumps(number * (2**61 - 1), 2)[2:-1] for number in range(1, 30_000))
    return zipped(name, {"data.pkl": b"\x80\x02}(" + b"".join(key + b"N" for key in keys) + b"u."})


def _shared() -> Any:
    """A tuple that holds another one twice, which holds another one twice, and so on."""
    inner: Any = (1, 2)
    for _ in range(60):
        inner = (inner, inner)
    return inner


_HOSTILE: list[Callable[[str], bytes]] = [
    _same_hash,
    lambda name: archive(name, {"module": {}, "buffer_names": _shared(), "global_steps": _shared()}),
    lambda name: archive(name, {"module": {}, "param_shapes": [{"w": _shared()}]}),
    lambda name: archive(name, {"module": {"w\x1b[31m\n\u202eb\x07": Tensor((1,))}}),
    lambda name: archive(name, {"module": Call(Global("os", "mkdir"), ("it_ran",))}),
    lambda name: archive(name, {"module": Call(Global("builtins", "eval"), ("open('it_ran', 'w')",))}),
    lambda name: archive(name, Call(Global("torch._utils", "_rebuild_tensor_v2"), (ODD, ODD, ODD, ODD))),
    lambda name: archive(name, Call(Global("collections", "OrderedDict"), (7,))),
    lambda name: archive(name, Global("a\x1b[31m", "owned\x07")),
    lambda name: pickle.dumps({"module": {}}),
    lambda name: zipped(name, {"data.pkl": b"\x80\x02Nr\xff\xff\xff\x05."}),
    lambda name: zipped(name, {"data.pkl": bytes(90 << 20)}, zipfile.ZIP_DEFLATED),
    lambda name: zipped(name, {"version": b"3"}),
    lambda name: zipped(name, {"../../data.pkl": b"N.", "data.pkl": b"N."}),
    lambda name: zipped(name, {f"data/{number}": b"" for number in range(20_000)} | {"data.pkl": b"N."}),
    _deep,
    lambda name: archive("zero_pp_rank_7_mp_rank_00_optim_states.pt", {"module": {}}),
    lambda name: archive(
        name, {"module": {f"w{number}": Tensor((1,)) for number in range(3000)}, "param_shapes": [{"w": (10**15,)}]}
    ),
]
"""Archives that are made to harm."""

_LATEST: list[Write] = [b"", b"global_step10\n", b"../..", b"/etc", b"\x1b[2J", b"x" * 5000, b"\xff\xfe", b"."]
_STATES: list[Write] = [
    b'{"best_model_checkpoint": "run/checkpoint-5"}',
    b'{"best_model_checkpoint": 5}',
    b'{"best_model_checkpoint": "\\u001b[2J"}',
    b"[" * 100_000,
    b"{",
]
_STRAY_NAMES = [
    "mp_rank_01_model_states.pt",
    "layer_00-model_00-model_states.pt",
    "fp16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "zero_pp_rank_99999999999999999999_mp_rank_00_optim_states.pt",
    "tmp-\x1b[31m",
    "SHA256SUMS",
    "export.json",
    "x" * 255,
]
