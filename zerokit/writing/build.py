"""A ds_config from a few decisions, with the reason for each key."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from zerokit.config.base import AUTO, ZERO
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.config.load import load_ds_config
from zerokit.config.sections import DeepSpeedConfig
from zerokit.documents import with_value
from zerokit.resolving.filled_keys import FILLED, FINALIZE, PRECISION, PREPARE, PROCESS, SIZE_RULES
from zerokit.writing.hyperparameters import ASKED, CHOSEN, LEFT_OUT, Choice, optimizer_choices, scheduler_choices
from zerokit.writing.request import Decisions
from zerokit.writing.sizing import bucket_choices, nvme_buffer_choices

__all__ = ["Built", "build", "build_ds_config"]


@dataclass(frozen=True)
class Built:
    """A generated config and what led to it."""

    config: DeepSpeedConfig
    choices: tuple[Choice, ...]
    """In the order of the config's keys, as far as they have one."""


def build_ds_config(**decisions: Any) -> DeepSpeedConfig:
    """The config of :func:`build`; keywords are the fields of :class:`Decisions`.

    Raises:
        ConfigError: the decisions do not go together.
    """
    return build(Decisions(**decisions)).config


def build(decisions: Decisions) -> Built:
    """A valid ds_config that holds only what differs from DeepSpeed's defaults or must not be absent.

    - For `trainer`, whatever the Trainer has an argument for is "auto", for it ignores its argument in
      silence when the key is absent. Buckets are sized by the model's hidden size.
    - For `accelerate`, the same without the buckets: it knows the hidden size of fewer models, and fails
      where it does not.
    - For both there is no `optimizer` and no `scheduler` unless asked for: they would override the script's
      silently.
    - For `deepspeed` nothing is "auto": batch sizes default to 1, clipping to 1.0, and an AdamW is
      written out, which DeepSpeed needs under offload and ignores if the script passes its own.
    - `train_batch_size` is left out: it is computed, and the config holds for any number of GPUs.
    - With a model, buckets, prefetch and persistence are numbers (see :mod:`zerokit.writing.sizing`).

    Raises:
        ConfigError: the decisions do not go together.
    """
    decisions.check()
    choices = [
        *_batch(decisions),
        *_clipping(decisions),
        *_precision(decisions),
        *_zero(decisions),
        *optimizer_choices(decisions),
        *scheduler_choices(decisions),
        *_activation_checkpointing(decisions),
    ]
    return Built(load_ds_config(_as_data(choices)), tuple(choices))


def _as_data(choices: Iterable[Choice]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for choice in choices:
        if choice.value is LEFT_OUT:
            continue
        data = with_value(data, choice.path, choice.value)
    return data


def _batch(decisions: Decisions) -> Iterator[Choice]:
    target = decisions.target
    for key, value in ((MICRO, decisions.micro_batch_size), (STEPS, decisions.gradient_accumulation_steps)):
        source = FILLED[key].source(target)
        if decisions.inference and target == "deepspeed" and key == STEPS:
            continue
        if value is not None:
            why = "fixed here" + ("; the Trainer's argument must say the same" if target == "trainer" else "")
            yield Choice((key,), value, why, ASKED)
        elif source is None:
            why = (
                "DeepSpeed insists on it, though nothing is trained"
                if decisions.inference
                else "a start; raise it as memory allows"
            )
            yield Choice((key,), 1, why, "deepspeed/runtime/config.py, _set_batch_related_parameters")
        else:
            yield Choice((key,), AUTO, f"filled from {source.words}", source.step)
    why = "computed: micro batch x accumulation steps x ranks, so that the file holds for any number of GPUs"
    yield Choice((TRAIN,), LEFT_OUT, why, "deepspeed/runtime/config.py, _set_batch_related_parameters")


def _clipping(decisions: Decisions) -> Iterator[Choice]:
    path = ("gradient_clipping",)
    if decisions.inference and decisions.target == "deepspeed":
        return
    if decisions.gradient_clipping is not None:
        why = "largest norm of all gradients"
        if decisions.target == "trainer":
            why += "; the Trainer's max_grad_norm must say the same"
        yield Choice(path, decisions.gradient_clipping, why, ASKED)
    elif decisions.optimizer == "Muon" and decisions.zero_stage > 0 and decisions.target != "trainer":
        why = "under ZeRO the norm is taken of Muon's updates, which clipping would shrink a hundredfold"
        yield Choice(path, 0.0, why, "deepspeed/runtime/zero/stage_1_and_2.py, get_flat_partition")
    elif decisions.target == "deepspeed":
        why = "DeepSpeed's default since 0.19.3, written because it was 0 before"
        yield Choice(path, 1.0, why, "deepspeed/runtime/constants.py, GRADIENT_CLIPPING_DEFAULT")
    elif decisions.target == "trainer":
        why = "filled from max_grad_norm, which would be lost if the key were absent"
        if decisions.optimizer == "Muon" and decisions.zero_stage > 0:
            why += "; make that 0, for under ZeRO it would cut Muon's updates"
        yield Choice(path, AUTO, why, PROCESS)
    else:
        why = "filled by accelerate: 1.0, or what its plugin or environment says"
        yield Choice(path, AUTO, why, PREPARE)


def _precision(decisions: Decisions) -> Iterator[Choice]:
    precision = decisions.precision
    if precision is None:
        for name in ("bf16", "fp16"):
            source = FILLED[f"{name}.enabled"].source(decisions.target)
            assert source is not None  # a target that fills: `Decisions.check`
            yield Choice((name, "enabled"), AUTO, f"filled from {source.words}", source.step)
    elif precision != "fp32":
        why = f"trains in {precision} with fp32 master weights"
        if decisions.inference:
            why = f"holds the weights in {precision}"
        yield Choice((precision, "enabled"), True, why, ASKED)
    else:
        why = "says that fp32 is meant"
        if decisions.target != "deepspeed":
            why = "accelerate would add a section when mixed precision is requested"
        for name in ("bf16", "fp16"):
            yield Choice((name, "enabled"), False, why, PRECISION)


def _zero(decisions: Decisions) -> Iterator[Choice]:
    divided = {
        0: "nothing is divided: every rank holds all",
        1: "divides optimizer states among the ranks",
        2: "divides optimizer states and gradients among the ranks",
        3: "divides optimizer states, gradients and parameters among the ranks",
    }
    yield Choice(
        (ZERO, "stage"), decisions.zero_stage, divided[decisions.zero_stage], _source(decisions, "zero_stage")
    )
    yield from _offload(decisions)
    yield from _buckets(decisions)
    if decisions.zero_stage == 3:
        yield Choice(
            (ZERO, "stage3_gather_16bit_weights_on_model_save"),
            True,
            "without it the saved model holds no weights",
            "deepspeed/runtime/engine.py, save_16bit_model",
        )
    yield from _zero_plus_plus(decisions)


def _offload(decisions: Decisions) -> Iterator[Choice]:
    for key, device in (
        ("offload_optimizer", decisions.offload_optimizer),
        ("offload_param", decisions.offload_param),
    ):
        if device is None:
            continue
        what = "optimizer states, and its step," if key == "offload_optimizer" else "parameters"
        where = "the host's memory" if device == "cpu" else "NVMe"
        yield Choice((ZERO, key, "device"), device, f"{what} in {where}", _source(decisions, key))
        if device == "nvme":
            why = "a folder on each node's own NVMe"
            yield Choice((ZERO, key, "nvme_path"), decisions.nvme_path, why, ASKED)
            if key == "offload_param":
                yield from nvme_buffer_choices(decisions)


def _buckets(decisions: Decisions) -> Iterator[Choice]:
    if decisions.zero_stage == 0:
        return
    if decisions.run.model is not None:
        yield from bucket_choices(decisions, decisions.run.model)
        return
    for key, rule in SIZE_RULES.items():
        if rule.stage_3_only and decisions.zero_stage != 3:
            continue
        if decisions.target == "trainer":
            yield Choice((ZERO, key), AUTO, f"filled with {rule.formula} of the model", FINALIZE)
        else:
            why = "DeepSpeed's default; give --model for a size that suits it"
            if decisions.target == "accelerate":
                why += ". accelerate knows the hidden size of fewer models than the Trainer, and fails"
            yield Choice((ZERO, key), LEFT_OUT, why, "deepspeed/runtime/zero/config.py")


def _source(decisions: Decisions, name: str) -> str:
    return CHOSEN if name in decisions.chosen else ASKED


def _zero_plus_plus(decisions: Decisions) -> Iterator[Choice]:
    size = decisions.hpz_partition_size
    if size is None:
        return
    why = "a second copy of the parameters is divided among these ranks, to gather inside a node"
    source = ASKED if decisions.hpz_size else "--gpus-per-node"
    yield Choice((ZERO, "zero_hpz_partition_size"), size, why, source)
    if not decisions.zero_plus_plus:
        return
    yield Choice((ZERO, "zero_quantized_weights"), True, "parameters are gathered in 8 bits", ASKED)
    if not decisions.inference:
        why = "gradients are reduced in 4 bits"
        yield Choice((ZERO, "zero_quantized_gradients"), True, why, ASKED)


def _activation_checkpointing(decisions: Decisions) -> Iterator[Choice]:
    way = decisions.activation_checkpointing
    if way is None:
        return
    key, why = {
        "partition": (
            "partition_activations",
            "tensor-parallel ranks share kept activations; without tensor parallelism it changes nothing",
        ),
        "cpu": ("cpu_checkpointing", "kept activations wait in the host's memory"),
    }[way]
    yield Choice(("activation_checkpointing", key), True, why, ASKED)
