"""What the rehearsal watches and changes in DeepSpeed: phases, labels, the end after K steps, overrides."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from zerokit.rehearsal.collectives import Traffic
from zerokit.rehearsal.imports import when_imported
from zerokit.rehearsal.job import Overrides
from zerokit.rehearsal.library import Backend, Category, Phase
from zerokit.rehearsal.recording import StepMark


class RehearsalComplete(BaseException):
    """The steps that were asked for are done. Not an Exception, so that no script catches it by mistake."""


class Watch:
    """Follows the engine of a run.

    Args:
        backend: the loaded library.
        traffic: the collectives of this rank.
        steps: optimizer steps after which the run ends; 0 lets the script end by itself.
        overrides: changes to the run (job.Overrides).
        folder: for the folder that stands in for the script's `output_dir`; the system's if None.
    """

    def __init__(
        self,
        backend: Backend,
        traffic: Traffic,
        *,
        steps: int,
        overrides: Overrides,
        folder: Path | None = None,
    ) -> None:
        self._backend = backend
        self._traffic = traffic
        self._steps = steps
        self._overrides = overrides
        self._engines: list[Any] = []
        self._scratch = tempfile.TemporaryDirectory(prefix="zerokit-rehearsal-", dir=folder)
        self._makes_engine = False
        self.names: list[str] = []
        self.step_marks: list[StepMark] = []
        self.flops: list[float] = []
        self.ds_config: dict[str, Any] | None = None
        self.completed = 0
        self.stopped = False

    @property
    def saw_engine(self) -> bool:
        """Whether the script has made a DeepSpeed engine."""
        return bool(self._engines)

    def install(self) -> None:
        """Watch DeepSpeed, and torch's own loss, backward pass and optimizers."""
        when_imported("deepspeed.runtime.engine", self._watch_engine)
        when_imported("deepspeed.runtime.config", self._watch_config)
        when_imported("transformers.integrations.deepspeed", self._override_early)
        when_imported("accelerate.utils.deepspeed", self._override_early)
        when_imported("transformers.training_args", self._override_arguments)
        self._watch_torch()

    def close(self) -> None:
        """Remove what the script has written into the folder that stands in for its output_dir."""
        self._scratch.cleanup()

    # ---- DeepSpeed

    def _watch_engine(self, module: ModuleType) -> None:
        engine_class = module.DeepSpeedEngine
        initialize = engine_class.__init__
        step = self._in_phase(engine_class.step, Phase.STEP, then=Phase.BETWEEN)

        @functools.wraps(initialize)
        def watched_initialize(engine: Any, *arguments: Any, **given: Any) -> None:
            model: Any = given.get("model", arguments[1] if len(arguments) > 1 else None)
            if self._overrides.get("gradient_checkpointing") and hasattr(
                model, "gradient_checkpointing_enable"
            ):
                model.gradient_checkpointing_enable()
            self._backend.phase = Phase.INIT
            # At stage 0, DeepSpeed has its optimizer make its states by a step over zeros.
            self._makes_engine = True
            initialize(engine, *arguments, **given)
            self._makes_engine = False
            self._engines.append(engine)
            self._label()
            self._label_gradients(engine.module)
            self._backend.phase = Phase.BETWEEN

        @functools.wraps(step)
        def watched_step(engine: Any, *arguments: Any, **given: Any) -> Any:
            before = engine.global_steps
            result = step(engine, *arguments, **given)
            if engine.global_steps > before:
                self._end_step()
            return result

        engine_class.__init__, engine_class.step = watched_initialize, watched_step
        engine_class.forward = self._in_phase(engine_class.forward, Phase.FORWARD, then=Phase.LOSS)
        engine_class.backward = self._in_phase(engine_class.backward, Phase.BACKWARD, then=Phase.BETWEEN)

    def _in_phase(self, method: Callable[..., Any], phase: Phase, *, then: Phase) -> Callable[..., Any]:
        @functools.wraps(method)
        def watched(*arguments: Any, **given: Any) -> Any:
            self._backend.phase = phase
            result = method(*arguments, **given)
            self._backend.phase = then
            return result

        return watched

    def _end_step(self) -> None:
        self.completed += 1
        self._label()
        self._backend.set_step(self.completed)
        self._traffic.step = self.completed
        self.step_marks.append(StepMark(self._backend.event_count(), self.completed))
        self.flops.append(self._backend.flops - sum(self.flops))
        if self._steps and self.completed >= self._steps:
            self.stopped = True
            raise RehearsalComplete

    # ---- what blocks are for

    def _name(self, name: str) -> int:
        self.names.append(name)
        return len(self.names) - 1

    def _label(self) -> None:
        """Label the blocks of parameters, gradients and optimizer states as they lie between steps."""
        for engine in self._engines:
            for name, parameter in engine.module.named_parameters():
                index = self._name(name)
                for tensor in (parameter.data, getattr(parameter, "ds_tensor", None)):
                    if tensor is not None:
                        # A flat buffer holds many parameters and goes by none of their names.
                        is_own = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
                        self._backend.label(tensor, Category.PARAMETERS, index if is_own else -1)
                if parameter.grad is not None:
                    self._backend.label(parameter.grad, Category.GRADIENTS, index)
            for category, tensor in _optimizer_tensors(engine.optimizer):
                self._backend.label(tensor, category)

    def _label_gradients(self, module: Any) -> None:
        """Label each gradient as autograd hands it over, before DeepSpeed takes it."""
        backend = self._backend
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                index = self._name(name)

                def label(gradient: Any, index: int = index) -> None:
                    backend.label(gradient, Category.GRADIENTS, index)

                parameter.register_hook(label)

    # ---- torch

    def _watch_torch(self) -> None:
        import torch
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        backend = self._backend
        cross_entropy, run_backward = torch.nn.functional.cross_entropy, torch.autograd.backward
        new_parameter = torch.nn.Parameter.__new__

        @functools.wraps(cross_entropy)
        def watched_cross_entropy(*arguments: Any, **given: Any) -> Any:
            if backend.phase == Phase.FORWARD:
                backend.phase = Phase.LOSS
            return cross_entropy(*arguments, **given)

        @functools.wraps(run_backward)
        def watched_backward(*arguments: Any, **given: Any) -> Any:
            if backend.phase in (Phase.FORWARD, Phase.LOSS, Phase.BETWEEN):
                backend.phase = Phase.BACKWARD
            return run_backward(*arguments, **given)

        def labelled_parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
            parameter = new_parameter(cls, data, requires_grad)
            if parameter.device.type == "cpu":
                # Weights are never filled: what a script computes from files is data, not parameters.
                backend.never_fill(parameter)
            if parameter.device.type != "meta":
                backend.label(parameter, Category.PARAMETERS)
            return parameter

        torch.nn.functional.cross_entropy = watched_cross_entropy
        torch.autograd.backward = watched_backward
        torch.nn.Parameter.__new__ = labelled_parameter  # type: ignore[method-assign]
        register_optimizer_step_pre_hook(self._enter_plain_step)
        register_optimizer_step_post_hook(self._leave_plain_step)

    def _enter_plain_step(self, *_: Any) -> None:
        """A step of a torch optimizer that no DeepSpeed engine drives."""
        if not self._engines and not self._makes_engine:
            self._backend.phase = Phase.STEP

    def _leave_plain_step(self, optimizer: Any, *_: Any) -> None:
        if not self._engines and not self._makes_engine:
            self._backend.phase = Phase.BETWEEN
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._backend.label(parameter, Category.PARAMETERS)
                    if parameter.grad is not None:
                        self._backend.label(parameter.grad, Category.GRADIENTS)
            for tensor in _tensors_in(dict(optimizer.state)):
                self._backend.label(tensor, Category.OPTIMIZER_STATES)
            self._end_step()

    # ---- overrides

    def _watch_config(self, module: ModuleType) -> None:
        config_class = module.DeepSpeedConfig
        initialize = config_class.__init__

        @functools.wraps(initialize)
        def overridden(config: Any, source: Any, *arguments: Any, **given: Any) -> None:
            changes = self._overrides.get("ds_config", {})
            if changes:
                source = merged(_as_dict(source), changes)
            initialize(config, source, *arguments, **given)
            self.ds_config = dict(config._param_dict)

        config_class.__init__ = overridden

    def _override_early(self, module: ModuleType) -> None:
        """transformers and accelerate read the config before DeepSpeed does, to decide on ZeRO-3."""
        config_class = getattr(module, "HfDeepSpeedConfig", None)
        changes = self._overrides.get("ds_config", {})
        if config_class is None or not changes or getattr(config_class.__init__, "overridden", False):
            return
        initialize = config_class.__init__

        @functools.wraps(initialize)
        def overridden(config: Any, source: Any, *arguments: Any, **given: Any) -> None:
            initialize(config, merged(_as_dict(source), changes), *arguments, **given)

        overridden.overridden = True  # type: ignore[attr-defined]
        config_class.__init__ = overridden

    def _override_arguments(self, module: ModuleType) -> None:
        arguments_class = module.TrainingArguments
        finish = arguments_class.__post_init__
        divisor = self._overrides.get("micro_batch_divisor", 1)

        @functools.wraps(finish)
        def overridden(arguments: Any) -> None:
            # Losses that are made up must not come to lie beside those of a real run.
            arguments.output_dir = self._scratch.name
            if divisor > 1:
                arguments.per_device_train_batch_size = max(
                    arguments.per_device_train_batch_size // divisor, 1
                )
                arguments.gradient_accumulation_steps *= divisor
            if self._overrides.get("gradient_checkpointing"):
                arguments.gradient_checkpointing = True
            finish(arguments)

        arguments_class.__post_init__ = overridden


def _as_dict(source: Any) -> dict[str, Any]:
    if isinstance(source, Mapping):
        return dict(source)
    from zerokit.documents import read_document

    return dict(read_document(source).data)


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the dotted keys of `changes` set; a value of None removes the key."""
    result = {
        key: merged(value, {}) if isinstance(value, Mapping) else value for key, value in config.items()
    }
    for dotted, value in changes.items():
        *sections, key = dotted.split(".")
        place = result
        for section in sections:
            if not isinstance(place.get(section), dict):
                place[section] = {}
            place = place[section]
        if value is None:
            place.pop(key, None)
        else:
            place[key] = value
    return result


# Where DeepSpeed 0.19 keeps its tensors: attributes of the wrappers in runtime/zero/stage_1_and_2.py,
# stage3.py, runtime/bf16_optimizer.py and fp16/*.py. Attributes that a wrapper lacks are passed over.
_PLACES = {
    Category.PARAMETERS: ("bit16_groups_flat", "fp16_partitioned_groups_flat", "lp_param_groups_flat"),
    Category.OPTIMIZER_STATES: (
        *("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition"),
        *("fp32_groups_flat", "fp32_groups"),
    ),
    Category.GRADIENTS: (
        *("averaged_gradients", "grads_in_partition", "all_grad_tensors", "accumulated_grads_in_cpu"),
        *("grad_partitions_flat_buffer", "fp32_groups_gradients_flat", "temp_grad_buffer_for_cpu_offload"),
    ),
    Category.BUFFERS: ("ipg_buckets", "ipg_buffer", "_DeepSpeedZeroOptimizer_Stage3__ipg_bucket_flat_buffer"),
}


def _optimizer_tensors(wrapper: Any) -> Iterator[tuple[Category, Any]]:
    if wrapper is None:
        return
    # Optimizer states last: a master partition of fp32 training may be the parameter itself.
    for category, places in _PLACES.items():
        for place in places:
            for tensor in _tensors_in(getattr(wrapper, place, None)):
                yield category, tensor
    inner = getattr(wrapper, "optimizer", wrapper)
    for tensor in _tensors_in(dict(getattr(inner, "state", {}))):
        yield Category.OPTIMIZER_STATES, tensor


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


def agree_with_rank_0(module: ModuleType) -> None:
    """Let every rank find that it agrees with rank 0, in `deepspeed.runtime.zero.utils`.

    ZeRO-3 compares the order of modules and parameters. All ranks but the first send a placeholder into that
    broadcast and expect rank 0's numbers back, which nobody is there to send.
    """
    send, send_length = module.get_lst_from_rank0, module.assert_lst_len_same_as_other_ranks

    def same_list(numbers: list[int]) -> list[int]:
        send(numbers)
        return list(numbers)

    def same_length(numbers: list[int]) -> None:
        with contextlib.suppress(RuntimeError):
            send_length(numbers)

    module.get_lst_from_rank0 = same_list  # type: ignore[attr-defined]
    module.assert_lst_len_same_as_other_ranks = same_length  # type: ignore[attr-defined]


def patch_bookkeeping(_module: ModuleType) -> None:
    """DeepSpeed's own needs that a process without a GPU or peers does not have."""
    import deepspeed.comm.torch as communication
    import deepspeed.runtime.engine
    import deepspeed.utils.nvtx

    communication.build_shm_op = lambda: None
    # Ranges for a profiler of the GPU: every hook and collective opens one, and they take a tenth of the
    # run's time.
    deepspeed.utils.nvtx.enable_nvtx = False
    _register_compile_passes_where_used(deepspeed.runtime.engine.DeepSpeedEngine)


def _register_compile_passes_where_used(engine_class: Any) -> None:
    """Every engine registers DeepCompile's passes, and imports Inductor for it: most of a second."""
    register = getattr(engine_class, "register_compile_pass", None)
    if register is None:
        return

    @functools.wraps(register)
    def register_if_used(engine: Any, *arguments: Any, **given: Any) -> None:
        if engine.is_deepcompile_enabled():
            register(engine, *arguments, **given)

    engine_class.register_compile_pass = register_if_used
