"""What the models find in a single key, and what is wrong with the file as a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from zerokit.config.base import ZERO, is_comment
from zerokit.config.key_index import section_at
from zerokit.documents import KeyPath, dotted
from zerokit.findings import Edit, Move, Severity
from zerokit.lint.examples import ONE_SAMPLE, zero
from zerokit.lint.rule import Hit, Rule, Rules, add
from zerokit.lint.subject import Subject

rule = Rules("structure")


def _found_elsewhere(
    id: str, *, bad: Mapping[str, Any] | str, good: Mapping[str, Any], severity: Severity = "error"
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a rule that the models or the engine run themselves; the function only holds its text."""

    def register(described: Callable[[], None]) -> Callable[[], None]:
        add(Rule(id, rule.topic, severity, described, bad, good))
        return described

    return register


@_found_elsewhere(
    "unknown-key", bad={**zero(2), "gradient_cliping": 1.0}, good={**zero(2), "gradient_clipping": 1.0}
)
def _unknown_key() -> None:
    """A key that DeepSpeed does not read.

    At the top of the file, and in the sections that it reads with `dict.get` (`optimizer`, `scheduler`,
    `activation_checkpointing`, `aio`, `data_types`, `checkpoint`, `flops_profiler` and more), DeepSpeed
    ignores unknown keys silently, and its default holds: with `gradient_cliping` it clips at 1.0
    (not at all before 0.19.3), whatever the value, and `zero_optimisation` trains without ZeRO. In the
    sections that it parses with pydantic (`zero_optimization`, `fp16`, `bf16`, ...) it stops.

    Correct the name, or begin it with `_` to keep it as a comment at the top of the file.

    Source: `DeepSpeedConfig._initialize_params` in `deepspeed/runtime/config.py`, and `DeepSpeedConfigModel`
    in `deepspeed/runtime/config_utils.py` (`extra="forbid"`).
    """


@_found_elsewhere("misplaced-key", bad={**ONE_SAMPLE, "stage": 2}, good=zero(2))
def _misplaced_key() -> None:
    """A key that DeepSpeed reads, but in another section.

    The name is right and the place is not, so DeepSpeed reads its default instead: `stage` at the top of the
    file trains without ZeRO, `offload_optimizer` at the top offloads nothing. A section that is parsed
    strictly refuses the key, as `zero_optimization` refuses `aio`.

    Move the key to the section that the hint names.

    Source: as for `unknown-key`.
    """


@_found_elsewhere("removed-key", bad={**zero(2), "elasticity": {"enabled": False}}, good=zero(2))
def _removed_key() -> None:
    """A key that DeepSpeed removed and refuses.

    DeepSpeed 0.19.8 removed features such as Apex `amp`, `elasticity` and MiCS, and stops when a config
    still has one of their keys, even if that key switches the feature off.

    Remove the key. The hint names what takes its place, where something does.

    Source: `_reject_removed_config_keys` in `deepspeed/runtime/config.py`.
    """


@_found_elsewhere(
    "duplicate-key",
    bad=zero(3, prefetch_bucket_size=1, stage3_prefetch_bucket_size=2),
    good=zero(3, stage3_prefetch_bucket_size=2),
)
def _duplicate_key() -> None:
    """One key under two names.

    Some keys have two names, such as `bf16` and `bfloat16`, or `stage3_max_live_parameters` and
    `max_live_parameters`. With both in the file one of them wins, or DeepSpeed stops.

    Remove one of them.

    Source: the aliases in `deepspeed/runtime/zero/config.py`, and `get_bfloat16_config` in
    `deepspeed/runtime/precision_config.py`. The same key twice in one section is no finding, for then the
    file cannot be read: DeepSpeed refuses it, while transformers and accelerate take the last one
    (`dict_raise_error_on_duplicate_keys` in `deepspeed/runtime/config_utils.py`).
    """


@_found_elsewhere(
    "missing-key",
    bad={**zero(2), "optimizer": {"params": {"lr": 1e-4}}},
    good={**zero(2), "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}},
)
def _missing_key() -> None:
    """A section without a required key.

    An `optimizer` or `scheduler` without `type` is ignored as a whole, silently; a `scheduler` without
    `params` makes DeepSpeed fail when it starts.

    Add the key, or remove the section.

    Source: `get_optimizer_name` and `get_scheduler_params` in `deepspeed/runtime/config.py`.
    """


@_found_elsewhere(
    "wrong-type",
    bad={**zero(2), "train_micro_batch_size_per_gpu": "8"},
    good={**zero(2), "train_micro_batch_size_per_gpu": 8},
)
def _wrong_type() -> None:
    """A value of the wrong type.

    Numbers in quotes are strings. DeepSpeed compares, divides or passes them on as they are, and fails at
    the first step, or in the middle of its start with a message about something else; where it parses with
    pydantic it converts some and refuses others. transformers reads `"stage": "3"` as no ZeRO-3 at all,
    while DeepSpeed runs stage 3. `null` is a value like any other, and mostly no good one.

    Write the plain value: numbers and true or false without quotes, sections in braces.

    Source: `get_scalar_param` in `deepspeed/runtime/config_utils.py` checks nothing; `is_zero3` in
    `accelerate/utils/deepspeed.py` compares with the number.
    """


@_found_elsewhere(
    "string-switch",
    bad={**zero(2), "prescale_gradients": "false"},
    good={**zero(2), "prescale_gradients": False},
)
def _string_switch() -> None:
    """A switch whose value is a string.

    In the sections that DeepSpeed does not validate, any string that is not empty counts as true, `"false"`
    included: it switches on what it seems to switch off. In the sections that it parses with pydantic, the
    same `"false"` is false.

    Write true or false, without quotes.

    Source: `get_scalar_param` in `deepspeed/runtime/config_utils.py`; `DeepSpeedConfigModel` in the same
    file converts strings.
    """


@_found_elsewhere(
    "out-of-range", bad={**zero(2), "gradient_clipping": -1}, good={**zero(2), "gradient_clipping": 1.0}
)
def _out_of_range() -> None:
    """A number out of range.

    DeepSpeed checks few bounds. A negative clipping norm, a bucket of 0 elements or a learning rate below 0
    are accepted, and training then fails, does nothing, or diverges.

    Write a number within the bounds that the message names.

    Source: the fields of `deepspeed/runtime/zero/config.py` with bounds; the others follow from what the
    number is used for.
    """


@_found_elsewhere(
    "bad-value",
    bad={**zero(2), "communication_data_type": "fp8"},
    good={**zero(2), "communication_data_type": "bf16"},
)
def _bad_value() -> None:
    """A value that the key does not accept.

    Names of optimizers and schedules, devices, data types and the like must be spelled as DeepSpeed spells
    them. It refuses others, some of them only once the model is loaded.

    Write one of the values that the message lists.

    Source: `deepspeed/runtime/engine.py` (`_configure_basic_optimizer`, `_scheduler_from_config`) and the
    enums of `deepspeed/runtime/zero/offload_config.py`.
    """


@_found_elsewhere(
    "bad-key",
    bad=cast(Any, {**zero(2), 3: 1}),  # no JSON has an integer for a key
    good=zero(2),
)
def _bad_key() -> None:
    """A key that is not a string.

    Keys of JSON are strings. A config that a script or a YAML file made may hold numbers or `true` as keys,
    which DeepSpeed ignores.

    Put the key in double quotes, or remove it.
    """


@_found_elsewhere(
    "not-plain-json",
    severity="warning",
    bad='{\n  "train_micro_batch_size_per_gpu": 1, // of one GPU\n  "zero_optimization": {"stage": 2},\n}\n',
    good=zero(2),
)
def _not_plain_json() -> None:
    """The file is not plain JSON, although DeepSpeed reads it.

    DeepSpeed reads config files with hjson, which takes comments, commas after the last entry, keys and
    texts without quotes, and more. transformers and accelerate read the same file with Python's `json`, and
    stop: for the targets `trainer` and `accelerate` this is an error. Without quotes hjson takes a text up
    to the end of its line, comma and all, so that `"overlap_comm": True,` is the string "True,".

    Write plain JSON: double quotes, no comma after the last entry, and comments as a key that begins with
    `_` at the top of the file.

    Source: `DeepSpeedConfig.__init__` in `deepspeed/runtime/config.py`; `HfDeepSpeedConfig.__init__` in
    `accelerate/utils/deepspeed.py`.
    """


@_found_elsewhere(
    "template", bad={**zero(2), "train_micro_batch_size_per_gpu": "${MICRO_BATCH_SIZE}"}, good=zero(2)
)
def _template() -> None:
    """A template with values still to be filled in.

    Launch scripts make a ds_config of a template: they put numbers in place of `${NAME}`, `{{ name }}` or
    `CONFIG_NAME`. DeepSpeed does not: it reads such words as strings, uses `"${SCRATCH}/nvme"` as a folder of
    that name, and fails on those that should be numbers or switches. One finding covers all of them; findings
    that hold whatever is filled in are reported too.

    Fill it in, or check the file that the script makes from it.

    Source: `DeepSpeedConfig.__init__` in `deepspeed/runtime/config.py` reads the file as it is.
    """


@_found_elsewhere(
    "bad-disable",
    severity="warning",
    bad={**zero(2), "gradient_clipping": 1.0, "_zerokit": {"disable": ["unknown-kee"]}},
    good={**zero(2), "gradient_cliping": 1.0, "_zerokit": {"disable": ["unknown-key"]}},
)
def _bad_disable() -> None:
    """A list of disabled rules that zerokit cannot read.

    A config can switch off rules for itself under a key that DeepSpeed ignores: `"_zerokit": {"disable":
    ["RULE", {"rule": "RULE", "path": "zero_optimization.stage", "reason": "..."}]}`. With `path` only
    findings there and below are meant. An entry that names no rule switches nothing off.

    Write the id from the end of the finding's line.
    """


@_found_elsewhere(
    "unused-disable", severity="info", bad={**zero(2), "_zerokit": {"disable": ["unknown-key"]}}, good=zero(2)
)
def _unused_disable() -> None:
    """A disabled rule that finds nothing.

    What it was switched off for has gone, and the entry would hide the next mistake of its kind.

    Remove the entry from `_zerokit.disable`.
    """


@rule(
    "refused-comment",
    stops=True,
    bad={**ONE_SAMPLE, ZERO: {"_comment": "the usual", "stage": 2}},
    good={**zero(2), "_comment": "the usual"},
)
def refused_comment(subject: Subject) -> Iterator[Hit]:
    """A comment key in a section that refuses unknown keys.

    JSON has no comments, so people write keys such as `_comment`. At the top of the file, and in the
    sections that it reads with `dict.get`, DeepSpeed ignores them. In those that it parses with pydantic,
    and among the parameters of the optimizer and the scheduler, it refuses them like any other unknown key.

    Move the comment to the top of the file.

    Source: `DeepSpeedConfigModel` in `deepspeed/runtime/config_utils.py` (`extra="forbid"`).
    """
    taken = set(subject.written)
    for path in _comments(subject.written, ()):
        section = section_at(path[:-1], subject.written)
        if section is None or section.read_by == "lookup":
            continue
        name = str(path[-1])
        if name in taken:
            name = "_".join(["", *(str(key).strip("_/ ") for key in path)])
        fix: tuple[Edit, ...] = (Move(path, (name,)),) if name not in taken else ()
        taken.add(name)
        message = f"DeepSpeed refuses the comment '{path[-1]}' inside '{dotted(path[:-1])}'"
        free = name == str(path[-1])
        where = "where DeepSpeed ignores it" if free else f"as '{name}'"
        yield Hit(path, message, f"Move it to the top of the file, {where}", fix)


def _comments(data: Any, path: KeyPath) -> Iterator[KeyPath]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            if is_comment(key):
                yield (*path, key)
            else:
                yield from _comments(value, (*path, key))
