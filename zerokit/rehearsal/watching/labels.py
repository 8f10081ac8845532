"""Labels blocks of memory as parameters, gradients, optimizer states or buffers, by their holders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.patches import Patch, PrivateAttribute, watch, wrap
from zerokit.rehearsal.native.backend import Backend
from zerokit.rehearsal.timing.rank_time import untimed
from zerokit.rehearsal.watching.watcher import Events, Watcher
from zerokit.reporting.categories import Category
from zerokit.tables import table_of

_DDP = "torch.nn.parallel.distributed:DistributedDataParallel"
_MAKE_BUCKETS = [Patch(_DDP, name, "label its buckets") for name in ("__init__", "_pre_forward")]
_NEW_PARAMETER = Patch("torch.nn:Parameter", "__new__", "label parameters as they are made")
_STAGE_1_2 = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_SET_UP = Patch(_STAGE_1_2, "setup_buckets", "label what it makes for each backward pass", since="0.18.9")
_HELD: dict[Category, list[PrivateAttribute]] = {
    category: [PrivateAttribute(**row, purpose="label what it holds") for row in rows]
    for category, rows in table_of(__file__).items()
}
"""Where the optimizer wrappers of DeepSpeed keep their tensors; each has some of these attributes."""
_BUCKET = "reduce_bucket_size"
"""The name of all buffers: the key of the ds_config that sizes them."""


class Labels(Watcher):
    """Labels blocks in the backend."""

    def __init__(self, backend: Backend, events: Events) -> None:
        self._backend = backend
        self._events = events
        self.engines: list[Any] = []
        """Those of DeepSpeed that the script has made."""
        self.names: list[str] = []
        """What parameters and buckets are called; labels are indices into it."""
        self.of_buckets: list[range] = []
        """Blocks that DistributedDataParallel has made, in C++."""

    def on_process_start(self) -> None:
        wrap(_NEW_PARAMETER, self._new_parameter)
        wrap(_SET_UP, self._set_up_buckets)
        for makes_buckets in _MAKE_BUCKETS:
            wrap(makes_buckets, self._make_buckets)
        for attributes in _HELD.values():
            for attribute in attributes:
                watch(attribute)

    def on_engine_end(self, engine: Any) -> None:
        self.engines.append(engine)
        with untimed():  # a walk through modules is no part of the script
            self._label_engines()
            self._label_gradients(engine.module)

    def on_engine_step_end(self, engine: Any) -> None:
        with untimed():
            self._label_engines()

    def on_optimizer_step_end(self, optimizer: Any) -> None:
        if self._events.has_engine:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._backend.label(parameter, "parameters")
                if parameter.grad is not None:
                    self._backend.label(parameter.grad, "gradients")
        for tensor in _tensors_in(dict(optimizer.state)):
            self._backend.label(tensor, "optimizer_states")

    def _make_buckets(self, make: Any, *arguments: Any, **given: Any) -> Any:
        before = self._backend.block_count()
        made = make(*arguments, **given)
        self.of_buckets.append(range(before, self._backend.block_count()))
        return made

    def _set_up_buckets(self, set_up: Any, optimizer: Any) -> None:
        set_up(optimizer)
        for place in _HELD["buffers"]:
            for tensor in _tensors_in(getattr(optimizer, place.name, None)):
                self._backend.label(tensor, "buffers", self._name(_BUCKET))

    def _new_parameter(self, new: Any, cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        parameter = new(cls, data, requires_grad)
        if parameter.device.type == "cpu":
            # Weights are never filled: what a script computes from files is data, not parameters.
            self._backend.never_fill(parameter)
        if parameter.device.type != "meta":
            self._backend.label(parameter, "parameters")
        return parameter

    def _name(self, name: str) -> int:
        self.names.append(name)
        return len(self.names) - 1

    def _label_engines(self) -> None:
        """Label the blocks of parameters, gradients and optimizer states between steps."""
        for engine in self.engines:
            for name, parameter in engine.module.named_parameters():
                index = self._name(name)
                for tensor in (parameter.data, getattr(parameter, "ds_tensor", None)):
                    if tensor is not None:
                        # A flat buffer holds many parameters and goes by none of their names.
                        is_own = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
                        self._backend.label(tensor, "parameters", index if is_own else -1)
                if parameter.grad is not None:
                    self._backend.label(parameter.grad, "gradients", index)
            bucket = self._name(_BUCKET)
            for category, tensor in _optimizer_tensors(engine.optimizer):
                self._backend.label(tensor, category, bucket if category == "buffers" else -1)

    def _label_gradients(self, module: Any) -> None:
        """Label each gradient as autograd hands it over, before DeepSpeed takes it."""
        backend = self._backend
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                index = self._name(name)

                def label(gradient: Any, index: int = index) -> None:
                    backend.label(gradient, "gradients", index)

                parameter.register_hook(label)


def _optimizer_tensors(wrapper: Any) -> Iterator[tuple[Category, Any]]:
    if wrapper is None:
        return
    # Optimizer states last: a master partition of fp32 training may be the parameter itself.
    for category, attributes in _HELD.items():
        for name in dict.fromkeys(attribute.name for attribute in attributes):
            for tensor in _tensors_in(getattr(wrapper, name, None)):
                yield category, tensor
    inner = getattr(wrapper, "optimizer", wrapper)
    for tensor in _tensors_in(dict(getattr(inner, "state", {}))):
        yield "optimizer_states", tensor


def _tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Tensors in nested lists, dicts and bucket objects, to a depth where DeepSpeed's structures end."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.device.type != "meta":
            yield value
        return
    if depth > 4:
        return
    if isinstance(value, Mapping):
        items: Any = value.values()
    elif isinstance(value, list | tuple | set):
        items = value
    else:
        items = [getattr(value, "buffer", None), getattr(value, "grads", None)] if value is not None else []
    for item in items:
        if item is not None:
            yield from _tensors_in(item, depth + 1)
