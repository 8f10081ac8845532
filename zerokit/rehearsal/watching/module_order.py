"""The modules that a rank of DeepSpeed runs, in order, to name the one that another rank skips."""

from __future__ import annotations

import json
from typing import Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.watching.watcher import Watcher

_SEEN = "see which modules ranks run"
_FORWARD = Patch("deepspeed.runtime.engine:DeepSpeedEngine", "forward", _SEEN)
_FETCH = Patch(
    "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator", "fetch_sub_module", _SEEN
)
_MOST = 1_000_000
"""Modules that are kept; the ranks of a script that trains for long have differed before."""


_GATHERS = 3
"""The ZeRO stage that gathers parameters."""


class ModuleOrder(Watcher):
    """Forward passes of engines, each with what is run in it and in the backward pass after it.

    With ZeRO-3 that is each module whose parameters are gathered, else each parameter that gets a gradient.
    """

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        """Modules by name, numbered in the order of their definition."""
        self._of_module: dict[int, int] = {}
        """Numbers by the modules' identity."""
        self._lists: list[str] = []
        """The names of lists of modules, such as experts."""
        self._passes: list[list[int]] = []
        """Of each pass twice the number of each module, plus one in a forward pass."""
        self._kept = 0
        self._uses_zero3 = False

    def on_process_start(self) -> None:
        wrap(_FORWARD, self._begin_pass)
        wrap(_FETCH, self._fetch)

    def on_engine_end(self, engine: Any) -> None:
        from torch.nn import ModuleDict, ModuleList

        self._uses_zero3 = engine.zero_optimization_stage() == _GATHERS
        for name, module in engine.module.named_modules():
            self._of_module[id(module)] = self._names.setdefault(name, len(self._names))
            if isinstance(module, ModuleList | ModuleDict):
                self._lists.append(name)
            for own, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad and not hasattr(parameter, "ds_id"):
                    self._watch_gradient(parameter, self._names.setdefault(f"{name}.{own}", len(self._names)))

    def to_json(self) -> bytes:
        """For the entry :data:`zerokit.rehearsal.ranks.skipped_modules.MODULES`."""
        return json.dumps([list(self._names), self._lists, self._passes, self._uses_zero3]).encode()

    def _watch_gradient(self, parameter: Any, number: int) -> None:
        parameter.register_hook(lambda _: self._add(2 * number))

    def _begin_pass(self, forward: Any, *arguments: Any, **given: Any) -> Any:
        self._passes.append([])
        return forward(*arguments, **given)

    def _fetch(self, fetch: Any, coordinator: Any, module: Any, *arguments: Any, **given: Any) -> Any:
        is_forward = given.get("forward", arguments[0] if arguments else True)
        if id(module) in self._of_module:
            self._add(2 * self._of_module[id(module)] + bool(is_forward))
        return fetch(coordinator, module, *arguments, **given)

    def _add(self, run: int) -> None:
        if self._passes and self._kept < _MOST:
            self._passes[-1].append(run)
            self._kept += 1
