"""Under which conditions, besides its stages, DeepSpeed looks at a key: what `Acts(when=...)` holds.

Each says in words when the key acts, for the schema and ``zerokit explain``, and tells why it does not in a
config, for ``zerokit check``, ``resolve`` and ``diff``; `no_effect.py` asks them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zerokit.config.base import AUTO, ZERO, Acts, Section, When
from zerokit.documents import KeyPath

TORCH_FP32 = ("fp32", "float32", "float", "torch.float32")
"""Names that `DtypeEnum` in `deepspeed/runtime/config.py` has for it."""


def _sure(*path: str) -> bool:
    return False


@dataclass(frozen=True)
class Known:
    """A config as far as it is known, and who runs it."""

    config: Section
    unsure: Callable[..., bool] = _sure
    """Whether a path is absent but may hide behind a key that was not understood."""
    target: str | None = None
    """None: not known."""

    def value(self, *path: str) -> Any:
        """What DeepSpeed reads at `path`, its default where the config says nothing.

        None if a section on the way is absent, if the value is "auto", or if it is not sure.
        """
        if self.unsure(*path):
            return None
        node: Any = self.config
        for key in path:
            node = getattr(node, key, None) if isinstance(node, Section) else None
        return None if node == AUTO else node

    @property
    def stage(self) -> int | None:
        stage = self.value(ZERO, "stage")
        return stage if isinstance(stage, int) else None

    def device(self, key: str) -> str | None:
        """Where `offload_optimizer` or `offload_param` offloads to; None if that is not known."""
        zero: Any = getattr(self.config, ZERO)
        section = zero.param_offload if key == "offload_param" else zero.optimizer_offload
        if section is None or section.device == "none":
            return None if self.unsure(ZERO, key, "device") else "none"
        return None if section.device == AUTO else str(section.device)


def bf16_optimizer(known: Known) -> bool | None:
    """Whether DeepSpeed takes its BF16_Optimizer in place of ZeRO stage 1's; None if that is not known.

    Source: `_do_optimizer_sanity_check` in `deepspeed/runtime/engine.py`.
    """
    bf16, device = known.value("bf16", "enabled"), known.device("offload_optimizer")
    if known.stage is None or (known.stage == 1 and (bf16 is None or device is None)):
        return None
    sums_in_fp32 = known.value("data_types", "grad_accum_dtype") in TORCH_FP32
    return known.stage == 1 and bf16 is True and sums_in_fp32 and device == "none"


def _sibling(key: str, value: Any, words: str) -> When:
    """Acts only if another key of the section has the value."""

    def idle(known: Known, path: KeyPath) -> str | None:
        found = known.value(*map(str, path[:-1]), key)
        if found is None or found == value:
            return None
        return f'acts with "{key}": {json.dumps(value)} only; it is {json.dumps(found)}'

    return When(words, idle)


def _without_device(known: Known, path: KeyPath) -> str | None:
    off = known.value(*map(str, path[:-1]), "device") == "none"
    return 'acts with a device only, and the device is "none"' if off else None


def _aio(known: Known, path: KeyPath) -> str | None:
    writer = ("checkpoint", "writer")
    if known.value(*writer) is not None or known.unsure(*writer) or known.stage is None:
        return None
    devices = [known.device(key) for key in ("offload_optimizer", "offload_param")]
    if known.stage == 3 and ("nvme" in devices or None in devices):
        return None
    return "acts on NVMe only: no tensors go there in this stage, and no checkpoint writer is set"


def _before_the_sum(known: Known, path: KeyPath) -> str | None:
    stage, summed = known.stage, known.value("gradient_allreduce_op") == "sum"
    if known.value(ZERO, "reduce_scatter") is True and (stage == 1 or (stage == 2 and summed)):
        return f"has no effect in ZeRO stage {stage} with 'reduce_scatter'"
    return None


def _not_for_trainers(what: str) -> Callable[[Known, KeyPath], str | None]:
    return lambda known, path: (
        f"acts {what} only, which this target does not have"
        if known.target in ("trainer", "accelerate")
        else None
    )


def _loss_scaling(known: Known, path: KeyPath) -> str | None:
    key, scale = path[-1], known.value("fp16", "loss_scale")
    if known.value("fp16", "enabled") is False:
        return "acts with fp16 enabled only"
    if key == "loss_scale" or scale is None:
        return None
    if scale:
        return f"has no effect, for 'loss_scale' {scale:g} does not adapt"
    if known.stage == 0 and "hysteresis" in str(key):
        return "has no effect in stage 0, where every overflow halves the loss scale"
    return None


def _immediate_update(known: Known, path: KeyPath) -> str | None:
    if known.config.model_fields_set & {"pipeline"} or bf16_optimizer(known) is not False:
        return None
    return "acts in stage 1 with bf16 and fp32 gradients only"


def _overflow_check(known: Known, path: KeyPath) -> str | None:
    return "does not act where bf16 gradients are summed in fp32" if bf16_optimizer(known) else None


def _communication(known: Known, path: KeyPath) -> str | None:
    shared = known.value("sequence_parallel_size") or 1
    if shared > 1 and known.value("data_parallel_size") is not None:
        return "has no effect here: 'seq_parallel_communication_data_type' takes its place"
    if known.value("torch_autocast", "enabled") is True and known.stage in (1, 2, 3):
        return "has no effect in ZeRO with 'torch_autocast'"
    return None


def _optimizer(known: Known) -> tuple[str | None, bool]:
    """The type in lower case, and whether PyTorch's Adam takes the place of DeepSpeed's."""
    kind, params = known.value("optimizer", "type"), known.value("optimizer", "params")
    name = kind.lower() if isinstance(kind, str) else None
    return name, name in ("adam", "adamw") and getattr(params, "torch_adam", False) is True


def _legacy_fusion(known: Known, path: KeyPath) -> str | None:
    name, is_torch = _optimizer(known)
    if name is not None and (name not in ("adam", "adamw") or is_torch):
        return f"has no effect with '{known.value('optimizer', 'type')}'" + " of PyTorch" * is_torch
    both = [known.value(precision, "enabled") for precision in ("fp16", "bf16")]
    return "has no effect in fp32" if both == [False, False] else None


def _muon(known: Known, path: KeyPath) -> str | None:
    name, _ = _optimizer(known)
    if name in (None, "muon"):
        return None
    return f"acts with Muon only; the optimizer is '{known.value('optimizer', 'type')}'"


def _on_host(known: Known, path: KeyPath) -> str | None:
    """Of the arguments that one of two classes takes, only this one is passed over by the other."""
    name, is_torch = _optimizer(known)
    if path[-1] != "fp32_optimizer_states" or name not in ("adam", "adamw", "muon"):
        return None
    device = known.device("offload_optimizer")
    if device == "none":
        return "has no effect: the optimizer is not offloaded"
    asked = known.value(*map(str, path)) is True and not is_torch
    if asked and device is not None and known.value("bf16", "bf16_optimizer_states") is True:
        return "is overridden by 'bf16_optimizer_states'"
    return None


def _decoupled_anyway(known: Known, path: KeyPath) -> str | None:
    if _optimizer(known)[0] == "adamw":
        return "has no effect with 'AdamW', whose weight decay stays decoupled"
    return None


def _contiguous(known: Known, path: KeyPath) -> str | None:
    if known.value(*map(str, path)) is not False or known.stage not in (1, 2):
        return None
    if known.device("offload_optimizer") in (None, "none"):
        return None
    return f"is switched on again by offload in stage {known.stage}"


def _allgather_bucket(known: Known, path: KeyPath) -> str | None:
    odd = (known.value(*map(str, path)) or 0) % 2  # refused in stages 1 and 2
    zenflow = known.value(ZERO, "zenflow") is not None or known.unsure(ZERO, "zenflow")
    return None if odd or zenflow else "is not used with PyTorch 1.13 and later"


def _fast_init(known: Known, path: KeyPath) -> str | None:
    if known.device("offload_optimizer") != "nvme":
        return NVME.idle(known, path)
    if known.device("offload_param") in (None, "nvme"):
        return None
    return "acts only if the parameters are on NVMe too"


def _if(wrong: Callable[[Known], bool], reason: str) -> Callable[[Known, KeyPath], str | None]:
    return lambda known, path: reason if wrong(known) else None


def _is_absent(known: Known, key: str) -> bool:
    return known.value(key) is None and not known.unsure(key)


NOT_READ = Acts(when=When(None, lambda known, path: "is not read by DeepSpeed"))
NVME = _sibling("device", "nvme", "with `nvme`")
DEVICE = When("", _without_device, silent_at_default=True)
FAST_INIT = When("with `nvme` for the parameters, too", _fast_init)
SUPER_OFFLOAD = _sibling("super_offload", True, "with `super_offload`")
FREE_ACTIVATION = _sibling("free_activation", True, "with `free_activation`")
AIO = When("in stage 3 with `nvme`, and in every stage with `checkpoint.writer`", _aio)
BEFORE_THE_SUM = When(
    "in stage 0, and in the others with `reduce_scatter` false", _before_the_sum, silent_at_default=True
)
NOT_BY_DEFAULT = When("", lambda known, path: None, silent_at_default=True)
CONTIGUOUS = When("", _contiguous)
OPTIMIZER_OFFLOADED = When(
    "with `offload_optimizer`",
    _if(lambda known: known.device("offload_optimizer") == "none", "acts with 'offload_optimizer' only"),
    silent_at_default=True,
)
ZENFLOW = When("with `zenflow`", _allgather_bucket)
PIPELINE_MODULE = When("on a `PipelineModule`", _not_for_trainers("on a PipelineModule"))
OWN_LOADER = When("in DeepSpeed's own data loader", _not_for_trainers("in DeepSpeed's own data loader"))
SEQUENCE_PARALLEL = When(
    "with `sequence_parallel_size`",
    _if(
        lambda known: _is_absent(known, "sequence_parallel_size"),
        "acts together with 'sequence_parallel_size' only",
    ),
)
TENSOR_PARALLEL = When(
    "with `autotp_size`",
    _if(
        lambda known: known.value("tensor_parallel", "autotp_size") in (0, 1),
        "does not divide the model in training: 'autotp_size' does",
    ),
    silent_at_default=True,
)
SWITCH_OF_OLD = When(
    None,
    lambda known, path: "is read with 'zero_optimization' true only, and PyTorch since 1.13 does without it",
)
NO_WRITER = When(
    "without `checkpoint.writer`",
    _if(
        lambda known: known.value("checkpoint", "writer") is not None,
        "has no effect: 'checkpoint.writer' takes the place of DataStates",
    ),
)
COMMUNICATION = When("", _communication)
LOSS_SCALING = When("", _loss_scaling, silent_at_default=True)
IMMEDIATE_UPDATE = When("with bf16 and fp32 gradients", _immediate_update)
OVERFLOW_CHECK = When("", _overflow_check, silent_at_default=True)
LEGACY_FUSION = When("with 16-bit weights", _legacy_fusion)
MUON = When("with Muon", _muon)
OFFLOADED = When("with `offload_optimizer`", _on_host)
NOT_OFFLOADED = When("with the optimizer on the GPU", lambda known, path: None)
DECOUPLED_ANYWAY = When("with the type `Adam`", _decoupled_anyway, silent_at_default=True)
DECAY_STEPS = When(
    "with `decay_step_size`",
    lambda known, path: (
        "has no effect while 'decay_step_size' is 0"
        if known.value(*map(str, path[:-1]), "decay_step_size") == 0
        else None
    ),
)
BY_EPOCHS = When(
    "",
    lambda known, path: (
        'has no effect with the strategy "step"'
        if known.value(*map(str, path[:-1]), "select_strategy") == "step"
        else None
    ),
)
