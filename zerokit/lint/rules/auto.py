"""The word "auto" where it is not filled in."""

from collections.abc import Iterator
from dataclasses import replace

from zerokit.config.base import AUTO, ZERO
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.config.key_index import canonical, section_at
from zerokit.documents import KeyPath, dotted
from zerokit.findings import Edit, Move, Remove
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject
from zerokit.resolving.auto_word import FREE_TEXT, TARGETS, autos, is_dropped
from zerokit.resolving.filled_keys import FILLED, FILLED_BY, SIZE_RULES


@rule("unfilled-auto")
def unfilled_auto(subject: Subject) -> Iterator[Hit]:
    """ "auto" for a key that is not filled in"""
    free = FREE_TEXT if subject.run.target in (None, "deepspeed") else ()
    for path in autos(subject.written):
        if not _fills(path, subject) and dotted(path) not in free:
            fix = _without_auto(path, subject)
            yield Hit(path, _what_happens(path, subject), _instead(path, subject), fix)


@rule("auto-beside-numbers")
def auto_beside_numbers(subject: Subject) -> Iterator[Hit]:
    """ "auto" although `train_batch_size` or the micro batch is a number, so DeepSpeed alone would start"""
    if subject.run.target is not None or not subject.may_be_plain:
        return
    if subject.is_absent(TRAIN) and subject.is_absent(MICRO):
        return
    alone = replace(subject, run=replace(subject.run, target="deepspeed"))
    for path in autos(subject.written):
        if dotted(path) in FILLED_BY["trainer"] - FILLED_BY["deepspeed"]:
            hint = "Write a value; or name --target trainer or accelerate, if one of them fills it in"
            yield Hit(path, f"without the Trainer or accelerate, {_what_happens(path, alone)}", hint)


def _what_happens(path: KeyPath, subject: Subject) -> str:
    says = f"'{path[-1]}' is \"auto\""
    if subject.run.target is None:
        return f"{says}, which is not filled in here"
    if subject.run.target != "deepspeed":
        who = "the Trainer" if subject.run.target == "trainer" else "accelerate"
        return f"{says}, which {who} does not fill in here, and accelerate refuses what is left"
    first = canonical(path)
    if is_dropped(path):
        return f"{says}, which DeepSpeed drops: {_dropped(first, subject)}"
    if first[0] in (TRAIN, MICRO, STEPS):
        return f"{says}, which DeepSpeed compares with a number and fails when it starts"
    if first[0] in ("gradient_clipping", "steps_per_print"):
        return f"{says}, which DeepSpeed takes for a value and fails at the first step"
    return f"{says}, which DeepSpeed takes for a value"


def _dropped(path: KeyPath, subject: Subject) -> str:
    """What remains without the key at `path`, in words."""
    if path == (ZERO, "stage"):
        return "the stage is 0, and nothing is divided"
    if path[-1] == "device":
        return "the device is none, and nothing is offloaded"
    if path in (("bf16", "enabled"), ("fp16", "enabled")):
        other = "fp16" if path[0] == "bf16" else "bf16"
        in_fp32 = subject.written_value(other, "enabled") is not True
        return f"{path[0]} is off" + (", and training runs in fp32" if in_fp32 else "")
    section = section_at(path[:-1])
    field = section.model_fields.get(str(path[-1])) if section is not None else None
    default = field.get_default(call_default_factory=True) if field is not None else None
    number = isinstance(default, int | float) and not isinstance(default, bool)
    shown = f"{default:,}" if number else str(default).lower()
    return f"its default applies, {'no value' if default is None else shown}"


def _instead(path: KeyPath, subject: Subject) -> str:
    first = canonical(path)
    if first != path and subject.run.target != "deepspeed" and _fills(first, subject):
        return f"Call it '{dotted(first)}', which is filled in"
    hint = "Write a value, or remove the key for DeepSpeed's default"
    if subject.run.target != "trainer" and dotted(first) in FILLED_BY["trainer"]:
        hint += "; the Trainer would fill it in"
    return hint


def _without_auto(path: KeyPath, subject: Subject) -> tuple[Edit, ...]:
    """The one right answer, if there is one: the name that is filled, or what DeepSpeed does anyway."""
    first = canonical(path)
    if first != path and subject.run.target != "deepspeed" and _fills(first, subject):
        end = next(index for index, key in enumerate(path) if key != first[index]) + 1
        return (Move(path[:end], first[:end]),)
    sized = str(first[-1]).endswith(("_bucket_size", "_threshold"))
    if subject.run.target == "deepspeed" and is_dropped(path) and sized:
        return (Remove(path),)
    return ()


def _fills(path: KeyPath, subject: Subject) -> bool:
    """Whether an "auto" at `path` is filled for the target, or for one of them where it is not known."""
    targets = TARGETS if subject.run.target is None else (subject.run.target,)
    return any(dotted(path) in FILLED_BY[name] for name in targets)


@rule("auto-left-to-accelerate")
def auto_left_to_accelerate(subject: Subject) -> Iterator[Hit]:
    """Stage-3 sizes at "auto" in another stage, for a model with a `text_config`"""
    model = subject.run.model
    if model is None or subject.run.target != "trainer" or subject.stage not in (0, 1, 2):
        return
    if model.hidden_size_for_trainer is None or model.hidden_size_for_accelerate is not None:
        return  # no-hidden-size reports the former
    for key, size in SIZE_RULES.items():
        path = (ZERO, key)
        if size.stage_3_only and subject.written_value(*path) == AUTO:
            message = f"the Trainer fills '{key}' in stage 3 only, and accelerate finds no hidden size"
            yield Hit(path, message, "Remove the key: it acts in stage 3 only", (Remove(path),))


@rule("auto-without-argument")
def auto_without_argument(subject: Subject) -> Iterator[Hit]:
    """ "auto" for a key without an argument of the Trainer"""
    if subject.run.target == "trainer":
        for filled in FILLED.values():
            path, source = filled.path, filled.accelerate
            if filled.trainer is not None or source is None or path[-1] in ("nvme_path", "steps_per_print"):
                continue
            acts = not path[-1].startswith("stage3_") or subject.stage == 3
            if subject.written_value(*path) == AUTO and acts:
                outcome = f"it becomes {str(source.makes).lower()}"
                yield Hit(path, f"no argument of the Trainer fills '{path[-1]}': {outcome}", "Write a value")
    if subject.run.target not in ("trainer", "accelerate"):
        return
    for key in ("offload_optimizer", "offload_param"):
        path = (ZERO, key, "nvme_path")
        if subject.written_value(*path) == AUTO and subject.written_value(ZERO, key, "device") == "nvme":
            message = "'nvme_path' is \"auto\", which becomes a folder called none in the working directory"
            yield Hit(path, message, "Write the folder on the NVMe device")
