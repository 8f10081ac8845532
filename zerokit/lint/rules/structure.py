"""Keys that are no text, and keys that are comments."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from zerokit.config.base import ZERO, is_comment
from zerokit.config.key_index import section_at
from zerokit.config.normal_form import RENAMED, refused_together
from zerokit.documents import KeyPath, dotted
from zerokit.findings import Edit, Move, Remove, SetValue
from zerokit.lint.rule import Hit, Rule, add, rule
from zerokit.lint.subject import Subject

_STAGE_2 = {"train_micro_batch_size_per_gpu": 1, ZERO: {"stage": 2}}

add(
    Rule(  # not in the table: no JSON has an integer for a key
        "bad-key",
        "structure",
        "error",
        "A key that is not a string",
        "Keys of JSON are strings. A config that a script or a YAML file made may hold numbers or `true` as "
        "keys,\nwhich DeepSpeed ignores.\n\nPut the key in double quotes, or remove it.",
        bad=cast(Any, {**_STAGE_2, 3: 1}),
        good=_STAGE_2,
    )
)


@rule("refused-comment")
def refused_comment(subject: Subject) -> Iterator[Hit]:
    """A comment key in a section that refuses unknown keys."""
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


@rule("old-and-new-key")
def old_and_new_key(subject: Subject) -> Iterator[Hit]:
    """A deprecated key together with its replacement."""
    for path, message in refused_together(subject.config):
        if path[0] == ZERO:
            old, new = str(path[-1]), RENAMED[str(path[-1])]
            agree = _means_same(getattr(subject.zero, old), getattr(subject.zero, new))
            hint = f"Remove '{old}'" if agree else f"They differ: decide on one value, and write it as '{new}'"
            yield Hit(path, message, hint, (Remove(path),) if agree else ())


def _means_same(old: bool | None, new: object) -> bool:
    """Whether a deprecated key and its replacement mean the same. An old key of null means nothing."""
    meant = new if isinstance(new, bool) else {"cpu": True, "none": False}.get(getattr(new, "device", "none"))
    return old is None or old == meant


@rule("deprecated-key")
def deprecated_key(subject: Subject) -> Iterator[Hit]:
    """A deprecated key."""
    for old, new in RENAMED.items():
        if subject.is_set(ZERO, old) and not subject.is_set(ZERO, new):
            value = subject.written_value(ZERO, old)
            hint, fix = _replacement(old, new, value)
            if old == "cpu_offload" and value is True and _is_overlooked(subject):
                who = "the Trainer" if subject.run.target == "trainer" else "accelerate"
                message = f"{who} does not see '{old}', and hands over an optimizer that DeepSpeed refuses"
                yield Hit((ZERO, old), message, hint, fix, "error")
            else:
                yield Hit((ZERO, old), f"'{old}' is deprecated", hint, fix)
    if subject.is_set(ZERO, "cpu_offload_use_pin_memory"):
        message = "'cpu_offload_use_pin_memory' is deprecated, and DeepSpeed does not use its value"
        hint = "Remove it, and write 'pin_memory' in the offload sections"
        yield Hit((ZERO, "cpu_offload_use_pin_memory"), message, hint)
    switch = subject.written.get(ZERO)
    if isinstance(switch, bool):
        section = {"stage": int(switch)}
        fix = () if subject.is_set("allgather_size") else (SetValue((ZERO,), section),)
        hint = f'Write {{"stage": {int(switch)}}}'
        yield Hit((ZERO,), f"'{ZERO}' as true or false is deprecated", hint, fix)
    if "bfloat16" in subject.written:
        message = "'bfloat16' is the old name of 'bf16'; the Trainer and accelerate do not read it"
        # The Trainer would compare what it has not seen so far with its arguments, and may stop.
        fix = () if subject.run.target == "trainer" else (Move(("bfloat16",), ("bf16",)),)
        yield Hit(("bf16",), message, "Call it 'bf16'", fix)


def _is_overlooked(subject: Subject) -> bool:
    """Whether an offload under its old name leaves PyTorch's optimizer where DeepSpeed wants its own.

    Source: `_prepare_deepspeed` in accelerate `accelerator.py`, `_configure_optimizer` in
    `deepspeed/runtime/engine.py`.
    """
    if subject.run.target not in ("trainer", "accelerate") or not subject.is_absent("optimizer"):
        return False
    return subject.value("zero_force_ds_cpu_optimizer") is True


def _replacement(old: str, new: str, value: object) -> tuple[str, tuple[Edit, ...]]:
    """Hint and fix for a deprecated key of `zero_optimization`."""
    path = (ZERO, old)
    if not old.startswith("cpu_offload"):
        return f"Write '{new}'", (Move(path, (ZERO, new)),)
    if value is not True:
        return "Remove it", (Remove(path),)
    fix = (SetValue(path, {"device": "cpu"}), Move(path, (ZERO, new)))
    return f'Write "{new}": {{"device": "cpu"}}', fix
