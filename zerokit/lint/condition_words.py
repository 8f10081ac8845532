"""The conditions that the tables of rules and defects name by their words."""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, reduce
from operator import ge, gt, lt, ne, or_
from typing import Any

from zerokit.config.base import AUTO, ZERO, Section
from zerokit.config.conditions import (
    DECAY_STEPS,
    DEVICE,
    FAST_INIT,
    LOSS_SCALING,
    NO_WRITER,
    NOT_READ,
    NVME,
    OLD_SWITCH,
    Condition,
    bf16_optimizer,
)
from zerokit.config.dtypes import FP32_NAMES
from zerokit.config.optimizers import OptimizerSpec
from zerokit.config.scheduler import TORCH_SCHEDULERS
from zerokit.config.unused_keys import UnusedKey
from zerokit.documents import split_dotted
from zerokit.lint.number_formats import format_at, fp16_may_be_on, precision, switch
from zerokit.lint.optimizer_facts import (
    OPTIMIZER,
    SCHEDULER,
    default_clipping,
    optimizer_argument,
    optimizer_name,
    schedule_argument,
    schedule_name,
    spec,
    torch_adam,
)
from zerokit.lint.subject import Subject
from zerokit.releases.versions import known_at, parse_version


@cache
def condition(words: str) -> Condition:
    """Return the condition that a text names, such as "ZeRO stage 1 or 2" or "unless `fp16.enabled` false".

    Raises:
        KeyError: no condition has these words.
    """
    if words.startswith("unless "):
        other = condition(words.removeprefix("unless "))
        key = keys_of(named[1]) if (named := re.fullmatch(r"unless `([\w.]+)` \w+", words)) else None
        return Condition(
            words, lambda subject, path: not other.holds(subject) and (key is None or not subject.is_uncertain(*key))
        )
    test = _NAMED.get(words)
    if test is None and " or " in words and all(part in _NAMED for part in words.split(" or ")):
        return reduce(or_, map(condition, words.split(" or ")))
    if test is None:
        begins = [item for item in _PATTERNS.items() if item[0][0] == words[0]]
        found = ((make, re.fullmatch(pattern, words)) for pattern, make in begins)
        test = next((make(*match.groups()) for make, match in found if match), None)
    if test is None:
        raise KeyError(words)
    known, counts_gpus = test, words == "more than one GPU"
    return Condition(words, lambda subject, path: bool(known(subject)), counts_gpus=counts_gpus)


Test = Callable[[Subject], Any]


def keys_of(name: str) -> tuple[str, ...]:
    """The path of a dotted key."""
    return split_dotted(name) if name else ()


def _parsed(word: str) -> Any:
    """The value that a word such as `false`, `0` or `nvme` names."""
    try:
        return json.loads(word)
    except ValueError:
        return word


def _has_value(name: str, values: str | None) -> Test:
    """Whether the key has one of the values, by itself or by default. None: it is true, or a section that is
    there."""
    if values is None:
        return lambda subject: (found := subject.value(*keys_of(name))) is True or isinstance(found, Section)
    wanted = [_parsed(word) for word in values.split(" or ")]
    return lambda subject: subject.value(*keys_of(name)) in wanted


def _is_written(name: str, word: str | None) -> Test:
    """Whether the file gives the key, with the value that a word names."""
    path, wanted = keys_of(name), None if word is None else _parsed(word)
    if word is None:
        return lambda subject: subject.is_set(*path)
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return lambda subject: subject.is_set(*path) and subject.value(*path) == wanted
    return lambda subject: subject.is_set(*path) and subject.is_set(*path, to=wanted)


def _lists(name: str, relation: str, item: str) -> Test:
    """Whether the key's list has the item, or is without it."""
    return lambda subject: (item in (subject.value(*keys_of(name)) or ())) is (relation == "with")


def _compares(name: str, relation: str, bound: str, in_file: str | None) -> Test:
    """Whether the key's number has the relation to a bound; the recipe's number where the file has "auto"."""
    path, compare = keys_of(name), {"above": gt, "below": lt, "at least": ge}[relation]

    def test(subject: Subject) -> bool:
        number = subject.value(*path)
        if in_file is not None and not subject.is_set(*path):
            return False
        if number is None and in_file is None and subject.is_set(*path, to=AUTO):
            number = _training(subject, name)
        return isinstance(number, int | float) and bool(compare(number, float(bound)))

    return test


def _compares_keys(name: str, relation: str, other: str) -> Test:
    """Whether two keys have values, and the first has the relation to the second."""
    compare = {"above": gt, "unlike": ne}[relation]

    def test(subject: Subject) -> bool:
        values = [subject.value(*keys_of(key)) for key in (name, other)]
        return None not in values and bool(compare(*values))

    return test


def _has_no_effect(name: str, why: str | None) -> Test:
    """Whether the key is set and changes nothing: because of the stage, or for another reason."""
    path, by_stage = keys_of(name), {"this": True, "any": False}.get(why or "")
    return lambda subject: path in subject.unused and by_stage in (None, subject.unused[path].by_stage)


def _compares_run(name: str, relation: str, what: str) -> Test:
    """Whether the key's number has the relation to a number of the run, if that is known."""
    compare: Callable[[int, int], Any] = {
        "above": gt,
        "at least": ge,
        "that does not divide": lambda size, number: number % size,
    }[relation]

    def test(subject: Subject) -> bool:
        size, number = subject.value(*keys_of(name)), _NUMBERS_OF_RUN[what](subject)
        return isinstance(size, int) and number is not None and bool(compare(size, number))

    return test


def _optimizer_is(names: str) -> Test:
    wanted = names.lower().split(" or ")
    return lambda subject: optimizer_name(subject) in wanted


def _is_release(version: str) -> Test:
    """Whether the release is that one or a later one, or not known."""
    least = parse_version(version)
    return lambda subject: subject.run.deepspeed_version is None or subject.run.deepspeed_version >= least


def _is_wrapped(subject: Subject) -> bool:
    """Whether DeepSpeed wraps the optimizer."""
    in_16_bits = any(subject.value(precision, "enabled") is True for precision in ("fp16", "bf16"))
    return subject.stage in (1, 2, 3) or in_16_bits


def _has_no_bf16(subject: Subject) -> bool:
    gpu = subject.cluster.gpu
    return gpu is not None and gpu.capability is not None and gpu.capability < (8, 0)


def _on_one_node(subject: Subject) -> bool:
    gpus = subject.cluster.num_gpus
    return gpus is not None and gpus <= subject.cluster.gpus_per_node


def _training(subject: Subject, name: str) -> Any:
    return None if subject.run.recipe is None else subject.run.recipe.training.get(name)


def _fused_adam(subject: Subject) -> bool:
    plain = optimizer_name(subject) in ("adam", "adamw") and not torch_adam(subject)
    return plain and subject.offloads_optimizer is False


def _more_than_an_int_counts(subject: Subject) -> bool:
    ranks, model = 1 if subject.stage == 0 else subject.cluster.num_gpus, subject.run.model
    return model is not None and ranks is not None and model.num_parameters // ranks > 2**31 - 1


def _communicates_another_format(subject: Subject) -> bool:
    weights, sent = precision(subject), format_at(subject, "communication_data_type")
    return None not in (weights, sent) and weights != sent


def _differs_from_the_weights(name: str) -> Test:
    """Whether the key names a floating-point format other than that of the weights."""

    def test(subject: Subject) -> bool:
        weights, named = precision(subject), format_at(subject, *keys_of(name))
        return weights is not None and named not in (None, "int8", weights)

    return test


def _has_no_value(name: str) -> Test:
    """Whether DeepSpeed finds no value; null counts as none."""
    is_null = _is_written(name, "null")
    return lambda subject: subject.is_absent(*keys_of(name)) or is_null(subject)


def _is_open(name: str) -> Test:
    """Whether the key has "auto", by itself or by default."""
    path = keys_of(name)

    def test(subject: Subject) -> bool:
        value: Any = subject.config
        for key in path:
            value = getattr(value, key)
        return bool(value == AUTO) and not subject.is_uncertain(*path)

    return test


def _betas_are_reversed(subject: Subject) -> bool:
    betas = optimizer_argument(subject, "betas")
    return isinstance(betas, list) and betas[0] > betas[1]


def _is_known(name: str) -> Test:
    """Whether the release knows the key; so does one that is not given."""
    return lambda subject: (
        subject.run.deepspeed_version is None or known_at(keys_of(name), subject.run.deepspeed_version)
    )


def _may_exceed_the_bucket(subject: Subject) -> bool:
    """Whether a gradient may be larger than the bucket; always if the model or the bucket is not known."""
    model, recipe = subject.run.model, subject.run.recipe
    bucket = subject.value(ZERO, "reduce_bucket_size")
    if model is None or bucket is None or (recipe is not None and recipe.peft is not None):
        return True
    return bool(max(tensor.elements for tensor in model.tensors) > bucket)


def _may_fit_a_sub_group(subject: Subject) -> bool:
    """Whether one parameter group may fit; the Trainer has a small one of biases and norms."""
    model, ranks = subject.run.model, subject.cluster.num_gpus
    if subject.run.target != "deepspeed" or model is None or ranks is None:
        return True
    size = subject.value(ZERO, "sub_group_size")
    return size is None or model.num_parameters // ranks <= size


def _of_model(subject: Subject, *names: str) -> Any:
    """A property of the model; None if the model, or one on the way, is not there."""
    found: Any = subject.run.model
    for name in names:
        found = None if found is None else getattr(found, name)
    return found


def _of_optimizer(test: Callable[[OptimizerSpec], Any]) -> Test:
    """A condition of the optimizer that the file names; it does not hold if that is not certain."""
    return lambda subject: (found := spec(subject)) is not None and test(found)


def _all_steps_warm_up(subject: Subject) -> bool:
    total = schedule_argument(subject, "total_num_steps")
    return isinstance(total, int) and total == schedule_argument(subject, "warmup_num_steps")


def _has_lists(subject: Subject) -> bool:
    params = subject.written_value(*SCHEDULER)
    return isinstance(params, Mapping) and any(isinstance(value, list) for value in params.values())


_LEAF_MODELS = frozenset({"mixtral", "qwen2_moe", "qwen3_moe"})
"""The `model_type` of models whose expert blocks DeepSpeed treats as leaf modules by itself."""

_NUMBERS_OF_RUN: Mapping[str, Callable[[Subject], int | None]] = {
    "the GPUs": lambda subject: subject.cluster.num_gpus,
    "the GPUs of a node": lambda subject: subject.cluster.gpus_per_node,
    "the key-value heads": lambda subject: _of_model(subject, "num_key_value_heads"),
    "the experts": lambda subject: _of_model(subject, "experts", "num_experts"),
}

_NAMED: Mapping[str, Test] = {
    "bf16": lambda subject: subject.value("bf16", "enabled") is True,
    "fp16": lambda subject: subject.value("fp16", "enabled") is True,
    "more than one GPU": lambda subject: subject.cluster.num_gpus is None or subject.cluster.num_gpus > 1,
    "`offload_optimizer`": lambda subject: subject.offloads_optimizer,
    "no `offload_optimizer`": lambda subject: subject.offloads_optimizer is False,
    "offload to NVMe": lambda subject: "nvme" in map(subject.device, ("offload_optimizer", "offload_param")),
    "`data_types.grad_accum_dtype` fp32": lambda subject: (
        subject.value("data_types", "grad_accum_dtype") in FP32_NAMES
    ),
    "bf16, ZeRO stage 1, `data_types.grad_accum_dtype` fp32, no `offload_optimizer`": bf16_optimizer,
    "`gradient_clipping` above 0 in the file": lambda subject: (
        subject.is_set("gradient_clipping") and subject.value("gradient_clipping")
    ),
    "`peft` in the recipe": lambda subject: subject.run.recipe and subject.run.recipe.peft is not None,
    "`peft.modules_to_save` in the recipe": lambda subject: (
        subject.run.recipe and (subject.run.recipe.peft or {}).get("modules_to_save")
    ),
    "the Trainer runs the recipe": lambda subject: (
        subject.run.recipe is not None and subject.run.target in ("trainer", None)
    ),
    "a dense model": lambda subject: subject.run.model and subject.run.model.experts is None,
    "experts without a leaf module of DeepSpeed's": lambda subject: (
        _of_model(subject, "experts") and _of_model(subject, "model_type") not in _LEAF_MODELS
    ),
    "a mixture of experts": lambda subject: subject.run.model and subject.run.model.experts is not None,
    "ranks that share a sequence": lambda subject: subject.run.parallelism.sequence > 1,
    "tensor parallelism of the run": lambda subject: subject.run.parallelism.tensor > 1,
    "DeepSpeed's Adam or AdamW on the GPU": _fused_adam,
    "an optimizer other than DeepSpeed's Adam or AdamW on the GPU": lambda subject: not _fused_adam(subject),
    "more than 2^31 - 1 parameters on a GPU": _more_than_an_int_counts,
    "a rate of the optimizer other than 0.001": lambda subject: (
        subject.is_set(*OPTIMIZER, "lr") and optimizer_argument(subject, "lr") not in (None, 0.001)
    ),
    "weights in another format than `communication_data_type`": _communicates_another_format,
    "gradients that may exceed `zero_optimization.reduce_bucket_size`": _may_exceed_the_bucket,
    "parameters that may fit into `zero_optimization.sub_group_size`": _may_fit_a_sub_group,
    "a schedule": schedule_name,
    "a schedule of PyTorch": lambda subject: schedule_name(subject) in TORCH_SCHEDULERS,
    "an optimizer": optimizer_name,
    "PyTorch's Adam or AdamW": torch_adam,
    "an optimizer that is no Adam or AdamW": lambda subject: optimizer_name(subject) not in (None, "adam", "adamw"),
    "betas in the wrong order": _betas_are_reversed,
    "an optimizer without DeepSpeed's code for the host": _of_optimizer(lambda found: not found.has_cpu_code),
    "an optimizer that needs whole tensors": _of_optimizer(lambda found: found.needs_whole_tensors),
    "an optimizer whose step fails": _of_optimizer(lambda found: found.step_fails),
    "an optimizer that ZeRO has not tested": _of_optimizer(
        lambda found: not found.zero_supports and not found.step_fails
    ),
    "an optimizer that DeepSpeed wraps": _is_wrapped,
    "trains in bf16": lambda subject: switch(subject, "bf16"),
    "trains in fp16": lambda subject: switch(subject, "fp16"),
    "fp16 is off": lambda subject: switch(subject, "fp16") is False,
    "a card without bf16": _has_no_bf16,
    "fp16 may be on": fp16_may_be_on,
    "one GPU": lambda subject: subject.cluster.num_gpus == 1,
    "one node": _on_one_node,
    "GPUs that do not fill nodes": lambda subject: (subject.cluster.num_gpus or 0) % subject.cluster.gpus_per_node,
    "parameters on the GPU": lambda subject: (
        subject.offload_param is None and not subject.is_uncertain(ZERO, "offload_param")
    ),
    "a file that DeepSpeed may read as it is": lambda subject: subject.may_be_plain,
    "an unknown target": lambda subject: subject.run.target is None,
    "`fp16.min_loss_scale` above the start": lambda subject: (
        subject.config.fp16.min_loss_scale > 2**subject.config.fp16.initial_scale_power
    ),
    "an unknown release": lambda subject: subject.run.deepspeed_version is None,
    "a model in bf16": lambda subject: subject.run.model and subject.run.model.dtype == "bfloat16",
    "a quantised model": lambda subject: subject.run.model and subject.run.model.quantization is not None,
    "a recipe": lambda subject: subject.run.recipe is not None,
    "DeepSpeed clips by default": default_clipping,
    "lists among `scheduler.params`": _has_lists,
    "`total_num_steps` equal to `warmup_num_steps`": _all_steps_warm_up,
    "`cycle_first_stair_count` or `cycle_second_stair_count`": lambda subject: (
        schedule_argument(subject, "cycle_first_stair_count") or schedule_argument(subject, "cycle_second_stair_count")
    ),
}
"""Conditions by their words, where these follow no pattern."""

_PATTERNS: Mapping[str, Callable[..., Test]] = {
    r"ZeRO stage ([\d, or]+)": lambda stages: lambda subject: str(subject.stage) in re.findall(r"\d", stages),
    r"target ([\w ]+)": lambda names: lambda subject: subject.run.target in names.split(" or "),
    r"the optimizer ([\w ]+)": _optimizer_is,
    r"the schedule (.+)": lambda names: lambda subject: schedule_name(subject) in names.split(" or "),
    r"`training\.(\w+)`( false)? in the recipe": lambda name, off: (
        lambda subject: _training(subject, name) is (not off)
    ),
    r"weights in ([\w ]+)": lambda formats: lambda subject: precision(subject) in formats.split(" or "),
    r"no value of `([\w.]+)`": _has_no_value,
    r"offload by `(\w+)`": lambda key: lambda subject: key in subject.offloads,
    r"an open `([\w.]+)`": _is_open,
    r"a release that knows `([\w.]+)`": _is_known,
    r"`([\w.]+)` in another format than the weights": _differs_from_the_weights,
    r"no `([\w.]+)`": lambda name: lambda subject: subject.is_absent(*keys_of(name)),
    r"`([\w.]+)` (above|below|at least) ([\d.]+)( in the file)?": _compares,
    r"`([\w.]+)` (above|unlike) `([\w.]+)`": _compares_keys,
    r"`([\w.]+)` (with|without) (\w+)": _lists,
    r"an odd `([\w.]+)`": lambda name: lambda subject: (subject.value(*keys_of(name)) or 0) % 2,
    rf"`([\w.]+)` (above|at least|that does not divide) ({'|'.join(_NUMBERS_OF_RUN)})": _compares_run,
    r"`([\w.]+)` has no effect(?: in (this|any) stage)?": _has_no_effect,
    r"a key of `(\w+)` has no effect": lambda name: lambda subject: name in (path[0] for path in subject.unused),
    r"`([\w.]+)` in (fp32|fp16|bf16|int8)": lambda name, wanted: (
        lambda subject: format_at(subject, *keys_of(name)) == wanted
    ),
    r"`([\w.]+)`(?: (\w+))? in the file": _is_written,
    r"DeepSpeed ([\d.]+) or later": _is_release,
    r"`([\w.]+)`(?: ([\w ]+))?": _has_value,
}
"""Patterns of the other words -> the test, by what the pattern's groups match."""


def is_idle_by_stage(key: UnusedKey, subject: Subject) -> bool:
    """Whether it is a key of `zero_optimization` that does nothing in this stage, and no other rule's."""
    is_zeros = key.path[0] == ZERO and len(key.path) == 2 and key.by_stage
    return is_zeros and subject.is_set(ZERO, "stage") and key.path[1] not in _HAVE_OTHER_RULES


_HAVE_OTHER_RULES = frozenset(
    (
        *("stage", "compute_grad_norm", "cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory"),
        *("legacy_stage1", "offload_optimizer", "offload_param", "pipeline_loading_checkpoint", "zenflow"),
    )
)


def _is_idle_beside_others(key: UnusedKey, subject: Subject) -> bool:
    if key.by_stage:
        return key.path[0] not in (ZERO, "bf16", "fp16", "optimizer", "compile", "pipeline")
    return key.acts.when in (DEVICE, NO_WRITER)


def _is_for_nvme(key: UnusedKey, subject: Subject) -> bool:
    device = subject.value(*map(str, key.path[:-1]), "device")  # with nvme it is the stage that is wrong
    return key.acts.when in (NVME, FAST_INIT) and device != "nvme"


KINDS_OF_UNUSED_KEYS: Mapping[str, Callable[[UnusedKey, Subject], bool]] = {
    "keys of ZeRO, by the stage": is_idle_by_stage,
    "keys of DeepCompile, by the stage": lambda key, subject: key.path[0] == "compile" and key.by_stage,
    "keys that DeepSpeed does not read": lambda key, subject: (
        key.acts.when in (NOT_READ, OLD_SWITCH) and key.path[-1] != "cpu_offload_use_pin_memory"
    ),
    "keys beside other keys": _is_idle_beside_others,
    "keys for NVMe": _is_for_nvme,
    "keys of the loss scale": lambda key, subject: key.acts.when is LOSS_SCALING,
    "keys of the decay after the cycle": lambda key, subject: key.acts.when is DECAY_STEPS,
}
"""Kinds of keys that change nothing, as rows name them in `each`."""
