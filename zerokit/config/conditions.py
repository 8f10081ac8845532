"""Conditions of a ds_config: when DeepSpeed reads a key, and when a config meets a defect of DeepSpeed.

`Acts(when=...)` names the condition of a key. It says in words when the key acts, for the schema and
``zerokit explain``, and why it does not in a config, for ``zerokit check``, ``resolve`` and ``diff``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zerokit.config.base import ALL_STAGES, AUTO, ZERO, Section
from zerokit.config.dtypes import FP32_NAMES
from zerokit.documents import KeyPath


@dataclass(frozen=True)
class ConfigView:
    """A config as far as it is known, and who runs it."""

    config: Section
    target: str | None = None
    """None: not known."""

    def is_uncertain(self, *path: str) -> bool:
        """Whether `path` is absent but may be meant by a key that was not understood."""
        return False

    def value(self, *path: str) -> Any:
        """The value that DeepSpeed reads at `path`: the file's, or else DeepSpeed's default.

        None if a section on the way is absent, if the value is "auto", or if it is uncertain: a rule that
        gets None reports nothing.
        """
        if self.is_uncertain(*path):
            return None
        node: Any = self.config
        for key in path:
            node = getattr(node, key, None) if isinstance(node, Section) else None
        return None if node == AUTO else node

    @property
    def stage(self) -> int | None:
        """The ZeRO stage, or None where it is "auto" or uncertain."""
        stage = self.value(ZERO, "stage")
        return stage if isinstance(stage, int) else None

    def device(self, key: str) -> str | None:
        """Where `offload_optimizer` or `offload_param` offloads to; None if that is not known."""
        zero: Any = getattr(self.config, ZERO)
        section = zero.param_offload if key == "offload_param" else zero.optimizer_offload
        if section is None or section.device == "none":
            return None if self.is_uncertain(ZERO, key, "device") else "none"
        return None if section.device == AUTO else str(section.device)

    @property
    def offloads_optimizer(self) -> bool | None:
        """Whether optimizer states leave the GPU; None if the device is "auto" or uncertain."""
        device = self.device("offload_optimizer")
        return None if device is None else device != "none"


Answer = bool | str | None
"""Whether a condition holds; a text: it does not, for that reason; None: that is uncertain."""


@dataclass(frozen=True)
class Condition:
    """Something that holds in a config, does not hold, or is uncertain."""

    words: str | None
    """As in "acts in stage 3 with `nvme`"; "" where the key's docstring says enough, None: it never holds."""
    answer: Callable[[Any, KeyPath], Answer]
    """The answer for a config (a `ConfigView`) and, where a key has the condition, the key's path."""
    otherwise: str | None = None
    """Why a key does nothing where the condition does not hold, unless the answer gives the reason."""
    silent_at_default: bool = False
    """Whether a key at DeepSpeed's default needs no report where it does nothing."""
    counts_gpus: bool = False
    """Whether it holds where the number of GPUs is not known, because most runs have several."""

    def holds(self, view: ConfigView, path: KeyPath = ()) -> bool:
        """Whether it certainly holds."""
        return self.answer(view, path) is True

    def reason_against(self, view: ConfigView, path: KeyPath) -> str | None:
        """Why the key at `path` certainly does nothing, or None if it acts or may act."""
        answer = self.answer(view, path)
        return self.otherwise if answer is False else answer if isinstance(answer, str) else None

    def __and__(self, other: Condition) -> Condition:
        return Condition(
            f"{self.words}, {other.words}",
            lambda view, path: self.holds(view, path) and other.holds(view, path),
            counts_gpus=self.counts_gpus or other.counts_gpus,
        )

    def __or__(self, other: Condition) -> Condition:
        return Condition(
            f"{self.words} or {other.words}",
            lambda view, path: self.holds(view, path) or other.holds(view, path),
            counts_gpus=self.counts_gpus or other.counts_gpus,
        )


class Acts:
    """Where and since when a key acts: ``Annotated[bool, Acts(3)]``. `descriptions.py` puts it in words,
    `unused_keys.py` decides by it.

    Args:
        stages: the ZeRO stages in which DeepSpeed reads the key; none given means all.
        when: what must hold too.
        since: the first release of DeepSpeed that knows the key, if that is after 0.14.0.
    """

    def __init__(self, *stages: int, when: Condition | None = None, since: str | None = None) -> None:
        self.stages, self.when, self.since = stages or ALL_STAGES, when, since


def bf16_optimizer(view: ConfigView) -> bool | None:
    """Whether DeepSpeed takes its BF16_Optimizer in place of ZeRO stage 1's; None if that is uncertain.

    Source: `_do_optimizer_sanity_check` in `deepspeed/runtime/engine.py`.
    """
    bf16, device = view.value("bf16", "enabled"), view.device("offload_optimizer")
    if view.stage is None or (view.stage == 1 and (bf16 is None or device is None)):
        return None
    sums_in_fp32 = view.value("data_types", "grad_accum_dtype") in FP32_NAMES
    return view.stage == 1 and bf16 is True and sums_in_fp32 and device == "none"


def _sibling(view: ConfigView, path: KeyPath, key: str) -> Any:
    """The value of another key in the section of `path`."""
    return view.value(*map(str, path[:-1]), key)


def _with_sibling(key: str, value: Any, words: str) -> Condition:
    """Acts only if another key of the section has the value."""

    def answer(view: ConfigView, path: KeyPath) -> Answer:
        found = _sibling(view, path, key)
        if found is None or found == value:
            return None
        return f'acts with "{key}": {json.dumps(value)} only; it is {json.dumps(found)}'

    return Condition(words, answer)


def _aio(view: ConfigView, path: KeyPath) -> Answer:
    writer = ("checkpoint", "writer")
    if view.value(*writer) is not None or view.is_uncertain(*writer) or view.stage is None:
        return None
    devices = [view.device(key) for key in ("offload_optimizer", "offload_param")]
    if view.stage == 3 and ("nvme" in devices or None in devices):
        return None
    return "acts on NVMe only: no tensors go there in this stage, and no checkpoint writer is set"


def _before_the_sum(view: ConfigView, path: KeyPath) -> Answer:
    stage, summed = view.stage, view.value("gradient_allreduce_op") == "sum"
    if view.value(ZERO, "reduce_scatter") is True and (stage == 1 or (stage == 2 and summed)):
        return f"has no effect in ZeRO stage {stage} with 'reduce_scatter'"
    return None


def _loss_scaling(view: ConfigView, path: KeyPath) -> Answer:
    key, scale = path[-1], view.value("fp16", "loss_scale")
    if view.value("fp16", "enabled") is False:
        return "acts with fp16 enabled only"
    if key == "loss_scale" or scale is None:
        return None
    if scale:
        return f"has no effect, for 'loss_scale' {scale:g} does not adapt"
    if view.stage == 0 and "hysteresis" in str(key):
        return "has no effect in stage 0, where every overflow halves the loss scale"
    return None


def _immediate_update(view: ConfigView, path: KeyPath) -> Answer:
    if view.config.model_fields_set & {"pipeline"} or bf16_optimizer(view) is not False:
        return None
    return "acts in stage 1 with bf16 and fp32 gradients only"


def _communication(view: ConfigView, path: KeyPath) -> Answer:
    shared = view.value("sequence_parallel_size") or 1
    if shared > 1 and view.value("data_parallel_size") is not None:
        return "has no effect here: 'seq_parallel_communication_data_type' takes its place"
    if view.value("torch_autocast", "enabled") is True and view.stage in (1, 2, 3):
        return "has no effect in ZeRO with 'torch_autocast'"
    return None


def _optimizer(view: ConfigView) -> tuple[str | None, bool]:
    """The type in lower case, and whether PyTorch's Adam takes the place of DeepSpeed's."""
    kind, params = view.value("optimizer", "type"), view.value("optimizer", "params")
    name = kind.lower() if isinstance(kind, str) else None
    return name, name in ("adam", "adamw") and getattr(params, "torch_adam", False) is True


def _legacy_fusion(view: ConfigView, path: KeyPath) -> Answer:
    name, is_torch = _optimizer(view)
    if name is not None and (name not in ("adam", "adamw") or is_torch):
        return f"has no effect with '{view.value('optimizer', 'type')}'" + " of PyTorch" * is_torch
    both = [view.value(precision, "enabled") for precision in ("fp16", "bf16")]
    return "has no effect in fp32" if both == [False, False] else None


def _muon(view: ConfigView, path: KeyPath) -> Answer:
    name, _ = _optimizer(view)
    if name in (None, "muon"):
        return None
    return f"acts with Muon only; the optimizer is '{view.value('optimizer', 'type')}'"


def _on_host(view: ConfigView, path: KeyPath) -> Answer:
    """Of the arguments that one of two classes takes, only this one is ignored by the other."""
    name, is_torch = _optimizer(view)
    if path[-1] != "fp32_optimizer_states" or name not in ("adam", "adamw", "muon"):
        return None
    device = view.device("offload_optimizer")
    if device == "none":
        return "has no effect: the optimizer is not offloaded"
    asked = view.value(*map(str, path)) is True and not is_torch
    if asked and device is not None and view.value("bf16", "bf16_optimizer_states") is True:
        return "is overridden by 'bf16_optimizer_states'"
    return None


def _contiguous(view: ConfigView, path: KeyPath) -> Answer:
    if view.value(*map(str, path)) is not False or view.stage not in (1, 2):
        return None
    if view.device("offload_optimizer") in (None, "none"):
        return None
    return f"is switched on again by offload in stage {view.stage}"


def _allgather_bucket(view: ConfigView, path: KeyPath) -> Answer:
    odd = (view.value(*map(str, path)) or 0) % 2  # refused in stages 1 and 2
    zenflow = view.value(ZERO, "zenflow") is not None or view.is_uncertain(ZERO, "zenflow")
    return None if odd or zenflow else "is not used with PyTorch 1.13 and later"


def _fast_init(view: ConfigView, path: KeyPath) -> Answer:
    if view.device("offload_optimizer") != "nvme":
        return NVME.reason_against(view, path)
    if view.device("offload_param") in (None, "nvme"):
        return None
    return "acts only if the parameters are on NVMe too"


def _in_own_loop(what: str) -> Condition:
    """Acts only where the script itself calls DeepSpeed."""
    return Condition(
        what,
        lambda view, path: view.target not in ("trainer", "accelerate"),
        f"acts {what.replace('`', '')} only, which this target does not have",
    )


NOT_READ = Condition(None, lambda view, path: False, "is not read by DeepSpeed")
NVME = _with_sibling("device", "nvme", "with `nvme`")
DEVICE = Condition(
    "",
    lambda view, path: _sibling(view, path, "device") != "none",
    'acts with a device only, and the device is "none"',
    silent_at_default=True,
)
FAST_INIT = Condition("with `nvme` for the parameters, too", _fast_init)
SUPER_OFFLOAD = _with_sibling("super_offload", True, "with `super_offload`")
FREE_ACTIVATION = _with_sibling("free_activation", True, "with `free_activation`")
AIO = Condition("in stage 3 with `nvme`, and in every stage with `checkpoint.writer`", _aio)
BEFORE_THE_SUM = Condition(
    "in stage 0, and in the others with `reduce_scatter` false", _before_the_sum, silent_at_default=True
)
NOT_BY_DEFAULT = Condition("", lambda view, path: None, silent_at_default=True)
CONTIGUOUS = Condition("", _contiguous)
OPTIMIZER_OFFLOADED = Condition(
    "with `offload_optimizer`",
    lambda view, path: view.offloads_optimizer,
    "acts with 'offload_optimizer' only",
    silent_at_default=True,
)
ZENFLOW = Condition("with `zenflow`", _allgather_bucket)
PIPELINE_MODULE = _in_own_loop("on a `PipelineModule`")
OWN_LOADER = _in_own_loop("in DeepSpeed's own data loader")
SEQUENCE_PARALLEL = Condition(
    "with `sequence_parallel_size`",
    lambda view, path: view.value("sequence_parallel_size") is not None or view.is_uncertain("sequence_parallel_size"),
    "acts together with 'sequence_parallel_size' only",
)
TENSOR_PARALLEL = Condition(
    "with `autotp_size`",
    lambda view, path: view.value("tensor_parallel", "autotp_size") not in (0, 1),
    "does not divide the model in training: 'autotp_size' does",
    silent_at_default=True,
)
OLD_SWITCH = Condition(
    None,
    lambda view, path: False,
    "is read with 'zero_optimization' true only, and PyTorch since 1.13 does without it",
)
NO_WRITER = Condition(
    "without `checkpoint.writer`",
    lambda view, path: view.value("checkpoint", "writer") is None,
    "has no effect: 'checkpoint.writer' takes the place of DataStates",
)
COMMUNICATION = Condition("", _communication)
LOSS_SCALING = Condition("", _loss_scaling, silent_at_default=True)
IMMEDIATE_UPDATE = Condition("with bf16 and fp32 gradients", _immediate_update)
OVERFLOW_CHECK = Condition(
    "",
    lambda view, path: not bf16_optimizer(view),
    "does not act where bf16 gradients are summed in fp32",
    silent_at_default=True,
)
LEGACY_FUSION = Condition("with 16-bit weights", _legacy_fusion)
MUON = Condition("with Muon", _muon)
OFFLOADED = Condition("with `offload_optimizer`", _on_host)
NOT_OFFLOADED = Condition("with the optimizer on the GPU", lambda view, path: None)
DECOUPLED_ANYWAY = Condition(
    "with the type `Adam`",
    lambda view, path: _optimizer(view)[0] != "adamw",
    "has no effect with 'AdamW', whose weight decay stays decoupled",
    silent_at_default=True,
)
DECAY_STEPS = Condition(
    "with `decay_step_size`",
    lambda view, path: _sibling(view, path, "decay_step_size") != 0,
    "has no effect while 'decay_step_size' is 0",
)
BY_EPOCHS = Condition(
    "", lambda view, path: _sibling(view, path, "select_strategy") != "step", 'has no effect with the strategy "step"'
)
