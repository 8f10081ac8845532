"""The peak that a run will reach, evaluation included, against its machine: said before it trains."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.source import is_rehearsal
from zerokit.config import DeepSpeedConfig
from zerokit.distributed.ranks import Ranks
from zerokit.errors import ZerokitError
from zerokit.estimation import Question, Runs, verdict
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import some_gpu
from zerokit.memory import Estimate, Lora
from zerokit.memory import estimate as estimate_run
from zerokit.memory.optimizers import optimizer_made
from zerokit.models import load_model_shape
from zerokit.reporting.phases import phase_words
from zerokit.reporting.verdicts import verdict_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from zerokit.choices import OptimizerKind
    from zerokit.training.prepare import Prepared

_CGROUP = Path("/sys/fs/cgroup/memory.max")


def expected_peak(prepared: Prepared, model: PreTrainedModel, cluster: Cluster) -> Estimate:
    """The estimate of the run as its arguments have it.

    Raises:
        ZerokitError: a model type, optimizer or setting that the estimate does not know.
    """
    args, ds_config = prepared.args, prepared.resolved.ds_config
    config: dict[str, Any] = model.config.to_dict()
    question = Question(
        model=load_model_shape(config, allow_network=False, allow_torch=False),
        cluster=cluster,
        ds_config=ds_config,
        precision=prepared.precision,  # type: ignore[arg-type]
        micro_batch_size=args.per_device_train_batch_size,
        eval_batch_size=None if prepared.held_out is None else args.per_device_eval_batch_size,
        seq_len=prepared.loaded.recipe.task.seq_len,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        gradient_checkpointing=_checkpoints(args),
        attention=_attention(model),
        chunked_loss=bool(getattr(args, "use_liger_kernel", False)),
        optimizer=own_optimizer(ds_config, args),
        lora=_lora(model),
    )
    return estimate_run(Runs().training_run(question))


def peak_lines(prepared: Prepared, model: PreTrainedModel, ranks: Ranks, gpu_bytes: int) -> list[str]:
    """What to say of the peak: whether it fits, and what to lower where it does not."""
    host = None if is_rehearsal() else host_memory_bytes()
    cluster = Cluster(ranks.world_size, ranks.local_world_size, some_gpu(None, gpu_bytes), host)
    try:
        answer = expected_peak(prepared, model, cluster)
    except Exception as error:
        # Whatever a config or an argument that nobody has seen leads to: the run does not need the estimate.
        reason = error.message if isinstance(error, ZerokitError) else f"{type(error).__name__}: {error}"
        return [f"peak memory is not estimated: {reason}"]
    fit = verdict(answer, gpu_bytes)
    low, high = fit.needed_low_bytes, fit.needed_high_bytes
    line = verdict_line(fit.verdict, low, high, gpu_bytes, fit.host).plain
    phase = answer.device.peak_phase
    lines = [f"estimated peak per rank, in {phase_words(phase)}: {line}"]
    if fit.verdict == "does not fit":
        batch = "per_device_eval_batch_size" if phase == "evaluation" else "per_device_train_batch_size"
        lines.append(
            f"zerokit: warning: the run will probably run out of memory. Lower training.{batch}, or ask "
            "'zerokit estimate' what fits"
        )
    return lines


def own_optimizer(ds_config: Mapping[str, Any], args: Any) -> OptimizerKind | None:
    """What the Trainer makes; None where the ds_config has an optimizer.

    Raises:
        ZerokitError: one whose memory is not known.
    """
    config = plain_config(ds_config)
    if config.optimizer is not None:
        return None
    return optimizer_made(config, str(getattr(args.optim, "value", args.optim)))


def plain_config(ds_config: Mapping[str, Any]) -> DeepSpeedConfig:
    """The ds_config as the Trainer is given it, but for what is still "auto": sizes of buckets."""
    zero = {key: value for key, value in ds_config["zero_optimization"].items() if value != "auto"}
    return DeepSpeedConfig.model_validate({**ds_config, "zero_optimization": zero})


def host_memory_bytes() -> int:
    """Of this machine, or of the container that it is."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int(_CGROUP.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit: "max"
        return whole


def _checkpoints(args: Any) -> bool:
    """By either name of the argument; transformers is about to rename it."""
    names = ("activation_checkpointing", "gradient_checkpointing")
    return any(bool(getattr(args, name, False)) for name in names)


def _attention(model: PreTrainedModel) -> Any:
    chosen = getattr(model.config, "_attn_implementation", None)
    return chosen if chosen in ("eager", "sdpa", "flash_attention_2") else None


def _lora(model: PreTrainedModel) -> Lora | None:
    adapters = getattr(model, "peft_config", None)
    if not adapters:
        return None
    adapter = next(iter(adapters.values()))
    targets = adapter.target_modules
    return Lora(adapter.r, (targets,) if isinstance(targets, str) else tuple(sorted(targets)))
