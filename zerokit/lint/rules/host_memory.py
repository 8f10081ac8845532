"""What offload takes of the host's memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from zerokit.config.base import ZERO
from zerokit.config.optimizers import optimizer_spec
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject, model_dtype_bytes, offload_param_at_the_run, share
from zerokit.units import format_bytes

_PINNED_SHARE = 0.8
"""Share of the host's memory: if more is pinned, too little is left that can be swapped out."""


@dataclass(frozen=True)
class HostBytes:
    """Bytes on the host for one rank, a lower bound."""

    pinned: int
    pageable: int


def host_bytes_of_a_rank(subject: Subject) -> HostBytes | None:
    """What DeepSpeed keeps on the host for one rank from the first step on; None if that is not known.

    Counted are whole copies of a rank's share, not what passes through. Sources: stages 1 and 2,
    `DeepSpeedZeroOptimizer.__init__` and `initialize_optimizer_states` in `stage_1_and_2.py`; stage 3,
    `_setup_for_real_optimizer`, `initialize_optimizer_states` and
    `_create_param_groups_fp16_flat_cpu_memory` in `stage3.py`, all in `deepspeed/runtime/zero/`; Adam's
    states, `DeepSpeedCPUAdam.step` in `deepspeed/ops/adam/cpu_adam.py`.
    """
    model, stage, peft = subject.run.model, subject.stage, subject.run.recipe and subject.run.recipe.peft
    if model is None or subject.cluster.num_gpus is None or stage not in (1, 2, 3) or peft:
        return None
    held = share(model.num_trainable_parameters, subject.cluster.num_gpus)
    pinned = pageable = 0
    optimizer, param = subject.offload_optimizer, offload_param_at_the_run(subject)
    element = model_dtype_bytes(subject) or 2
    if optimizer is not None:
        on_drive = stage == 3 and optimizer.device == "nvme"
        lasting, passing = _optimizer_bytes(subject, stage, element)
        if on_drive:
            tile = min(held, subject.zero.sub_group_size or held)
            pinned_bytes, pageable_bytes = 4 * tile * optimizer.buffer_count + element * held, 0
        else:
            share_here = optimizer.ratio if stage == 3 else 1.0
            pinned_bytes, pageable_bytes = int(passing * held * share_here), int(lasting * held * share_here)
        if optimizer.pin_memory or on_drive:
            pinned += pinned_bytes
        else:
            pageable += pinned_bytes
        pageable += pageable_bytes
    if param is not None and stage == 3:
        in_memory = min(held, param.max_in_cpu) if param.device == "nvme" else held
        pinned += element * in_memory
        if param.device == "nvme":
            pinned += element * param.buffer_count * param.buffer_size
    return HostBytes(pinned, pageable)


def _optimizer_bytes(subject: Subject, stage: int, element: int) -> tuple[int, int]:
    """Bytes per parameter on the host: those never pinned, and those pinned unless `pin_memory` is false."""
    low = subject.config.fp16.fp16_master_weights_and_grads or (
        subject.config.bf16 is not None and subject.config.bf16.bf16_master_weights_and_grads
    )
    master = 2 if low else 4
    states = 0 if low else _state_bytes(subject)
    if stage == 3:
        return master + states, master + element
    return states, 2 * master + element


def _state_bytes(subject: Subject) -> int:
    """Bytes of fp32 states per parameter, for the file's optimizer.

    For a recipe and the Trainer, whose AdamW accelerate turns into DeepSpeed's, those of AdamW.
    """
    name = None if subject.config.optimizer is None else subject.config.optimizer.type
    if name is None and subject.run.recipe is not None and subject.run.target == "trainer":
        named = str(subject.run.recipe.training.get("optim", "adamw_torch"))
        name = "AdamW" if named.startswith("adamw_torch") else None
    optimizer = optimizer_spec(name)
    return 4 * optimizer.host_states if optimizer is not None else 0


@rule("host-memory")
def host_memory(subject: Subject) -> Iterator[Hit]:
    """Offload that exceeds the host's memory"""
    needed = host_bytes_of_a_rank(subject)
    assert subject.cluster.host_bytes is not None
    if needed is None:
        return
    on_a_node = subject.cluster.local_ranks * (needed.pinned + needed.pageable)
    if on_a_node > subject.cluster.host_bytes:
        message = (
            f"offload of all parameters takes at least {format_bytes(on_a_node)} of each host's memory, "
            f"which is {format_bytes(subject.cluster.host_bytes)}"
        )
        hint = "Use more nodes, offload less, or use NVMe in stage 3"
        yield Hit(_place(subject), message, hint, (), "warning" if subject.run.recipe is None else None)


@rule("pinned-memory")
def pinned_memory(subject: Subject) -> Iterator[Hit]:
    """Offload that pins most of the host's memory"""
    needed = host_bytes_of_a_rank(subject)
    assert subject.cluster.host_bytes is not None
    if needed is None:
        return
    gpus = subject.cluster.local_ranks
    pinned = gpus * needed.pinned
    if pinned + gpus * needed.pageable > subject.cluster.host_bytes:
        return  # the rule above reports it
    if pinned > _PINNED_SHARE * subject.cluster.host_bytes:
        message = (
            f"offload pins {format_bytes(pinned)} of each host's memory, "
            f"{pinned / subject.cluster.host_bytes:.0%} of it"
        )
        yield Hit(_place(subject), message, _unpinned(subject))


def _unpinned(subject: Subject) -> str:
    """What takes less pinned memory: buffers for NVMe are pinned whatever `pin_memory` says."""
    sections = [one for one in (subject.offload_optimizer, subject.offload_param) if one is not None]
    hints = []
    if not sections or any(one.device == "cpu" for one in sections):
        hints.append('Set "pin_memory" to false')
    if any(one.device == "nvme" for one in sections):
        hints.append("make the buffers fewer or smaller" if hints else "Make the buffers fewer or smaller")
    return ", or ".join(hints)


def _place(subject: Subject) -> tuple[str, ...]:
    """The first offload section of the file."""
    return (ZERO, *list(subject.offloads)[:1])
