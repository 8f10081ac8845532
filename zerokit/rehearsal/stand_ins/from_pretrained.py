"""`from_pretrained` from the config alone: no weight is read, downloaded or filled.

transformers' own loading code runs on a checkpoint with every tensor of the model and no values, so the peaks
of loading are those of a real run. Models of diffusers are built from their config.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch

from zerokit.patches import Patch, put, wrap
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.native.backend import backend
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

CHECKPOINT = "rehearsed.safetensors"
"""The name of the checkpoint without values; transformers recognizes formats by the ending."""

_SHARD_BYTES = 5 * 10**9
"""What transformers before 5 saves in one file; it reads one file at a time."""

_MODELING = "transformers.modeling_utils"
_RESOLVE_FILES = Patch(_MODELING, "_get_resolved_checkpoint_files", "find a checkpoint without values", since="4.50")
_FROM_PRETRAINED = Patch(f"{_MODELING}:PreTrainedModel", "from_pretrained", "look for no checkpoint", until="4.50")
_SAFE_OPEN = Patch(_MODELING, "safe_open", "open a checkpoint without values")
_LOAD_STATE_DICT = Patch(_MODELING, "load_state_dict", "read a checkpoint without values")
_LOAD_PRETRAINED = Patch(f"{_MODELING}:PreTrainedModel", "_load_pretrained_model", "know what is loaded")
_OF_DIFFUSERS = Patch(
    "diffusers.models.modeling_utils:ModelMixin", "from_pretrained", "read no weights of diffusers' models"
)
_DISPATCH = Patch("accelerate.big_modeling", "dispatch_model", "refuse one model on several GPUs")

_ANY_NAME = ""
"""Of the one weight that a model is given which is not made yet."""

_Tensors = dict[str, tuple[tuple[int, ...], Any]]
"""Shape and dtype by name."""

_SAFETENSORS_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}


class _Slice:
    """One tensor of the checkpoint, as safetensors' `get_slice` gives it."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, device: str = "cpu") -> None:
        self._shape = shape
        self._dtype = dtype
        self._device = device

    def get_shape(self) -> list[int]:
        return list(self._shape)

    def get_dtype(self) -> str:
        return _SAFETENSORS_NAMES.get(str(self._dtype).removeprefix("torch."), "F32")

    def __getitem__(self, index: Any) -> Any:
        return made_up_tensor(self._shape, self._dtype, self._device)[index]


class _Checkpoint:
    """As `safetensors.safe_open` returns it, for a checkpoint of `model`; empty for None."""

    def __init__(self, model: Any, device: str) -> None:
        self._shapes = {} if model is None else dict(tensors_of(model))
        self._device = device

    def keys(self) -> list[str]:
        return list(self._shapes)

    def metadata(self) -> dict[str, str]:
        return {"format": "pt"}

    def get_slice(self, key: str) -> _Slice:
        return _Slice(*self._shapes[key], self._device)

    def get_tensor(self, key: str) -> Any:
        return made_up_tensor(*self._shapes[key], self._device)

    def __enter__(self) -> _Checkpoint:
        return self

    def __exit__(self, *_: Any) -> None:
        return None


def made_up_tensor(shape: tuple[int, ...], dtype: Any, device: str = "cpu") -> Any:
    """A tensor without values; on the host it takes no memory."""
    if device != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    # Zeros cost no page, and a small weight is read for real.
    tensor = torch.zeros(shape, dtype=dtype)
    backend().never_fill(tensor)
    return tensor


def tensors_of(model: Any) -> Iterator[tuple[str, tuple[tuple[int, ...], Any]]]:
    """Name, shape and dtype of every tensor in a checkpoint of `model`, which has the dtype of its config.

    Under ZeRO-3 a parameter's full shape is its `ds_shape`.
    """
    stored = getattr(model.config, "dtype", None) or getattr(model, "dtype", None)
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        shape = tuple(getattr(tensor, "ds_shape", tensor.shape))
        yield name, (shape, stored if tensor.is_floating_point() and stored is not None else tensor.dtype)


def _split(bound: inspect.BoundArguments, model: Any) -> dict[str, _Tensors]:
    """Let transformers before 5 load the checkpoint from several files; returns the tensors of each."""
    files = "checkpoint_files" if "checkpoint_files" in bound.arguments else "resolved_archive_file"
    if bound.arguments.get(files) != [CHECKPOINT] or "sharded_metadata" not in bound.signature.parameters:
        return {}
    shards: dict[str, _Tensors] = {}
    number = size = 0
    for name, (shape, dtype) in tensors_of(model):
        added = math.prod(shape) * dtype.itemsize
        if size and size + added > _SHARD_BYTES:
            number, size = number + 1, 0
        size += added
        shards.setdefault(f"{number}-{CHECKPOINT}", {})[name] = (shape, dtype)
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    metadata = {"all_checkpoint_keys": list(weight_map), "weight_map": weight_map}
    bound.arguments |= {files: list(shards), "sharded_metadata": metadata}
    return shards


@stand_in("from_pretrained", "safe_open", "ModelMixin", "dispatch_model")
def install(setup: RankSetup) -> None:
    """Replace the readers of files in transformers and diffusers, and refuse one model on several GPUs."""
    loading: list[tuple[Any, dict[str, _Tensors]]] = []  # models, and the shards of each

    def is_made_up(path: Any) -> bool:
        return path == CHECKPOINT or (bool(loading) and path in loading[-1][1])

    def open_safely(safe_open: Any, path: Any, framework: Any = "pt", device: Any = "cpu", **given: Any) -> Any:
        if not is_made_up(path):
            return safe_open(path, framework, device, **given)
        place = f"cuda:{device}" if isinstance(device, int) else str(device)
        return _Checkpoint(loading[-1][0] if loading else None, place)

    def load_dict(load_state_dict: Any, path: Any, *arguments: Any, **given: Any) -> Any:
        if not is_made_up(path):
            return load_state_dict(path, *arguments, **given)
        if not loading:  # the dtype of the weights is looked for, where the config has none
            return {"": made_up_tensor((1,), torch.float32)}
        bound = inspect.signature(load_state_dict).bind(path, *arguments, **given).arguments
        device = str(bound.get("map_location") or "cpu")
        model, shards = loading[-1]
        tensors = shards.get(path) or dict(tensors_of(model))
        return {name: made_up_tensor(*what, device) for name, what in tensors.items()}

    def load(load_pretrained: Any, *arguments: Any, **given: Any) -> Any:
        # Before transformers 5 a method of the class, which is the first argument then.
        model = next(one for one in arguments if not isinstance(one, type))
        bound = inspect.signature(load_pretrained).bind(*arguments, **given)
        if bound.arguments.get("loaded_keys") == [_ANY_NAME]:
            names = [name for name, _ in tensors_of(model)]
            bound.arguments |= {"state_dict": None, "loaded_keys": names, "resolved_archive_file": [CHECKPOINT]}
        loading.append((model, _split(bound, model)))
        try:
            return load_pretrained(*bound.args, **bound.kwargs)
        finally:
            loading.pop()

    # A model that is given its weights has no files.
    put(_RESOLVE_FILES, lambda *_, **__: ([CHECKPOINT], None))
    wrap(_FROM_PRETRAINED, _with_given_weights)
    wrap(_SAFE_OPEN, open_safely)
    wrap(_LOAD_STATE_DICT, load_dict)
    wrap(_LOAD_PRETRAINED, load)
    wrap(_OF_DIFFUSERS, build_from_config)
    wrap(_DISPATCH, _refuse_several_gpus)


def _with_given_weights(
    from_pretrained: Any, cls: Any, pretrained_model_name_or_path: Any, *arguments: Any, **given: Any
) -> Any:
    """A model of the config at a path, which has no files: its weights are given."""
    from transformers import PretrainedConfig

    path = pretrained_model_name_or_path
    if path is None or given.get("state_dict") is not None or given.get("gguf_file") is not None:
        return from_pretrained(cls, path, *arguments, **given)
    if not isinstance(given.get("config"), PretrainedConfig):
        source = given.pop("config", None) or path
        # They are the model's alone: a config would take them for values of its own.
        own = ("torch_dtype", "quantization_config")
        kept: dict[str, Any] = {name: given.pop(name) for name in own if name in given}
        config, given = cls.config_class.from_pretrained(source, return_unused_kwargs=True, **given)
        given |= {**kept, "config": config}
    weights = {_ANY_NAME: made_up_tensor((1,), torch.float32)}
    made = from_pretrained(cls, None, *arguments, state_dict=weights, **given)
    model = made[0] if isinstance(made, tuple) else made
    model.name_or_path = model.config.name_or_path = str(path)
    return made


def build_from_config(from_pretrained: Any, cls: Any, pretrained_model_name_or_path: Any, **given: Any) -> Any:
    """A model of diffusers as it is when it has been loaded; one that is quantized or spread has to load."""
    path = pretrained_model_name_or_path
    if given.get("quantization_config") is not None or given.get("device_map") is not None:
        return from_pretrained(cls, path, **given)
    config, unused = cls.load_config(path, return_unused_kwargs=True, **given)
    model = cls.from_config(config, **unused)
    model.register_to_config(_name_or_path=path)
    dtype = given.get("torch_dtype", torch.float32)
    kept = cls._keep_in_fp32_modules or [] if dtype == torch.float16 else []
    kept = [kept] if isinstance(kept, str) else kept
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and not set(name.split(".")).intersection(kept):
            tensor.data = tensor.data.to(dtype)
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
    info: dict[str, list[str]] = {name: [] for name in kinds}
    return (model.eval(), info) if given.get("output_loading_info") else model.eval()


def _refuse_several_gpus(dispatch: Any, model: Any, device_map: Any, *arguments: Any, **given: Any) -> Any:
    """Refuse a model that accelerate would spread over GPUs: the rehearsal follows one."""
    gpus = {str(device).removeprefix("cuda:") for device in device_map.values()} - {"cpu", "disk", "meta"}
    if len(gpus) > 1:
        raise RehearsalGap(
            f"a model that one process spreads over {len(gpus)} GPUs (device_map)",
            hint='Give each rank the whole model: device_map={"": local_rank}, or none under DeepSpeed',
        )
    return dispatch(model, device_map, *arguments, **given)
