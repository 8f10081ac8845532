"""Estimates the peak memory of a run, evaluation included, before it trains."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from zerokit.checkpoint.pretrained import CAUSAL_LM
from zerokit.choices import OptimizerKind
from zerokit.config import DeepSpeedConfig
from zerokit.distributed.ranks import Ranks
from zerokit.errors import ZerokitError
from zerokit.estimation import Fit, Question, Runs, verdict
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import some_gpu
from zerokit.hardware.host_memory import host_memory_bytes
from zerokit.memory import Estimate, Ia3, LearnedTokens, Lora, ModelStates
from zerokit.memory import estimate as estimate_run
from zerokit.memory.adapters import Modules
from zerokit.memory.optimizers import optimizer_made
from zerokit.models import load_model_shape
from zerokit.reporting.phases import phase_words
from zerokit.reporting.verdicts import NEGATIVE, judge, verdict_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from zerokit.training.run_context import RunContext


def _questions(context: RunContext, model: PreTrainedModel, cluster: Cluster, *, chunked: bool) -> list[Question]:
    """The batches that may take most memory, the usual one first; with a mask if examples share rows."""
    question = _question(context, model, cluster, chunked=chunked)
    batch, evaluated = question.micro_batch_size, question.eval_batch_size
    layout = context.task.layout(1, 1)
    if question.packing or layout is None or not layout.in_rows or batch is None or batch < 2:
        return [question]
    evaluated = evaluated and max(evaluated - 1, 1)
    return [question, replace(question, micro_batch_size=batch - 1, eval_batch_size=evaluated, packing=True)]


def _question(context: RunContext, model: PreTrainedModel, cluster: Cluster, *, chunked: bool) -> Question:
    """The run as its arguments describe it. ZerokitError for an unknown model type or optimizer."""
    args, ds_config = context.args, context.resolved.ds_config
    config: dict[str, Any] = model.config.to_dict()
    at_once = context.task.sequences_per_example
    return Question(
        model=load_model_shape(config, allow_network=False),
        cluster=cluster,
        parallelism=context.group_place.parallelism,
        ds_config=ds_config,
        precision=context.precision,  # type: ignore[arg-type]
        micro_batch_size=args.per_device_train_batch_size * at_once,
        eval_batch_size=None if context.held_out is None else args.per_device_eval_batch_size * at_once,
        seq_len=context.loaded.recipe.task.seq_len,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        gradient_checkpointing=_checkpoints(args),
        attention=_attention(model),
        tiled_mlp=context.own.tiled_mlp,
        activation_offloading=context.own.activation_offloading,
        chunked_loss="liger" if args.use_liger_kernel else "zerokit" if chunked else None,
        optimizer=own_optimizer(ds_config, args),
        **_adapter(model),
        packing="position_ids" in context.train.column_names,
    )


def _estimate(question: Question, num_trainable: int) -> Estimate:
    """The estimate of a run. ZerokitError for an unknown setting, or another adapter than is trained."""
    answer = estimate_run(Runs().training_run(question))
    known = answer.num_trainable_parameters
    if (question.lora or question.ia3 or question.learned_tokens) is not None and known != num_trainable:
        raise ZerokitError(f"the adapter trains {num_trainable} parameters, and the estimate knows of {known}")
    return answer


def divided_states(context: RunContext, model: PreTrainedModel, num_trainable: int) -> ModelStates:
    """The model states of one rank whose group divides layers: AutoTP leaves some parameters whole.

    Raises:
        ZerokitError: the estimate does not know the model or a setting.
    """
    question = _question(context, model, Cluster(context.group.ranks.world_size), chunked=False)
    return _estimate(question, num_trainable).model_states


class ExpectedPeak(NamedTuple):
    lines: list[str]
    """Whether it fits, and advice if it does not."""
    peak_bytes: int | None
    """On the fullest rank, as ``torch.cuda.max_memory_allocated`` counts; None if it is not estimated."""


def expected_peak(
    context: RunContext,
    model: PreTrainedModel,
    num_trainable: int,
    ranks: Ranks,
    gpu_bytes: int,
    *,
    chunked: bool = False,
) -> ExpectedPeak:
    host = host_memory_bytes() if context.group.policy.uses_this_machine else None
    cluster = Cluster(ranks.world_size, ranks.local_world_size, some_gpu(None, gpu_bytes), host)
    if context.task.model != CAUSAL_LM:
        noun = context.task.model.noun
        return ExpectedPeak([f"peak memory is not estimated: {noun} is none that it counts"], None)
    try:
        questions = _questions(context, model, cluster, chunked=chunked)
        answers = [_estimate(question, num_trainable) for question in questions]
        question, answer = questions[0], max(answers, key=lambda estimate: estimate.device.peak_bytes)
        fit = verdict(answer, gpu_bytes)
        at_once = context.task.sequences_per_example
        advice = [] if fit.verdict not in NEGATIVE else list(_advice(question, answer, fit, at_once))
    except Exception as error:
        # Whatever a config or an argument that nobody has seen leads to: the run does not need the estimate.
        reason = error.message if isinstance(error, ZerokitError) else f"{type(error).__name__}: {error}"
        return ExpectedPeak([f"peak memory is not estimated: {reason}"], None)
    low, high = fit.needed_low_bytes, fit.needed_high_bytes
    line = verdict_line(fit.verdict, low, high, gpu_bytes, fit.host, has_options=False).plain
    said = f"estimated peak per rank, in {phase_words(answer.device.peak_phase)}: {line}"
    return ExpectedPeak([said, *advice], answer.device.peak_bytes)


def _advice(question: Question, answer: Estimate, fit: Fit, at_once: int) -> Iterator[str]:
    """A line about the GPU's memory and one about the host's, for each that is too small."""
    start = "zerokit: warning: the run will probably run out of"
    if not _fits_gpu(fit):
        less = _less_on_gpu(question, answer, fit, at_once)
        yield f"{start} GPU memory. {less}, or ask 'zerokit estimate' what fits"
    if fit.host.verdict in NEGATIVE:
        yield f"{start} host memory. Offload less to the CPU, or start fewer ranks on a node"


def _less_on_gpu(question: Question, answer: Estimate, fit: Fit, at_once: int) -> str:
    eval_batch = question.eval_batch_size and at_once
    smallest = replace(question, micro_batch_size=at_once, eval_batch_size=eval_batch)
    least = estimate_run(Runs().training_run(smallest))
    if not _fits_gpu(verdict(least, fit.gpu_memory_bytes)):
        return "Even batches of one do not fit: offload more to the CPU, take more GPUs"
    kind = "eval" if answer.device.peak_phase == "evaluation" else "train"
    return f"Lower training.per_device_{kind}_batch_size"


def _fits_gpu(fit: Fit) -> bool:
    return judge(fit.needed_low_bytes, fit.needed_high_bytes, fit.gpu_memory_bytes) not in NEGATIVE


def own_optimizer(ds_config: Mapping[str, Any], args: Any) -> OptimizerKind | None:
    """The optimizer that the Trainer makes; None if the ds_config has one. Raises ZerokitError."""
    config = plain_config(ds_config)
    if config.optimizer is not None:
        return None
    return optimizer_made(config, str(getattr(args.optim, "value", args.optim)))


def plain_config(ds_config: Mapping[str, Any]) -> DeepSpeedConfig:
    """The ds_config of the Trainer without keys that are still "auto": sizes of buckets."""
    zero = {key: value for key, value in ds_config["zero_optimization"].items() if value != "auto"}
    return DeepSpeedConfig.model_validate({**ds_config, "zero_optimization": zero})


def _checkpoints(args: Any) -> bool:
    """Whether activations are checkpointed, by either name of the argument."""
    names = ("activation_checkpointing", "gradient_checkpointing")
    return any(bool(getattr(args, name, False)) for name in names)


def _attention(model: PreTrainedModel) -> Any:
    chosen = getattr(model.config, "_attn_implementation", None)
    return chosen if chosen in ("eager", "sdpa", "flash_attention_2") else None


def _adapter(model: PreTrainedModel) -> dict[str, Any]:
    """The adapter of a model, and the quantization of the model. ZerokitError for an unknown adapter."""
    adapters = getattr(model, "peft_config", None)
    if not adapters:
        return {}
    adapter = next(iter(adapters.values()))
    known: dict[str, Any]
    if adapter.is_prompt_learning:
        trained = sum(parameter.numel() for parameter in model.prompt_encoder.parameters())
        cached = adapter.peft_type == "PREFIX_TUNING"
        known = {"learned_tokens": LearnedTokens(adapter.num_virtual_tokens, trained, cached)}
    elif adapter.peft_type == "IA3":
        known = {"ia3": Ia3(_names(adapter.target_modules), _names(adapter.feedforward_modules))}
    elif adapter.peft_type == "LORA":
        targets, drops = _names(adapter.target_modules), adapter.lora_dropout > 0
        known = {"lora": Lora(adapter.r, targets, dora=adapter.use_dora, dropout=drops)}
    else:
        raise ZerokitError(f"it knows no adapter of {adapter.peft_type}")
    quantized = getattr(model.config, "quantization_config", None)
    if not getattr(quantized, "load_in_4bit", False):
        return known
    double = bool(getattr(quantized, "bnb_4bit_use_double_quant", False))
    return {**known, "load_in_4bit": True, "double_quant": double}


def _names(modules: str | Collection[str]) -> Modules:
    """Names of modules, as in peft's config."""
    return modules if isinstance(modules, str) else tuple(sorted(modules))
