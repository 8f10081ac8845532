"""Checkpoints and the saved model."""

from collections.abc import Iterator, Mapping

from zerokit.config.base import ZERO
from zerokit.findings import SetValue, Severity
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject, autotp_size

_GATHER = "stage3_gather_16bit_weights_on_model_save"
_OLD = "stage3_gather_fp16_weights_on_model_save"

_WITHOUT: Mapping[str | None, str] = {
    "trainer": "the Trainer saves a ZeRO checkpoint in place of the model's weights",
    "accelerate": "accelerate refuses to save the model",
    "deepspeed": "save_16bit_model() saves nothing",
    None: "nothing gathers the model's weights when it is saved",
}


@rule("unsaved-weights")
def unsaved_weights(subject: Subject) -> Iterator[Hit]:
    """A partitioned model that is not gathered when it is saved"""
    divided = autotp_size(subject) > 1 and subject.run.target in ("trainer", "accelerate")
    if subject.stage != 3 and not (divided and subject.stage is not None):
        return
    path = (ZERO, _GATHER)
    given = next((key for key in (_GATHER, _OLD) if subject.is_set(ZERO, key)), None)
    if getattr(subject.zero, _OLD) or subject.value(*path) is not False:
        return
    if subject.run.recipe is not None and subject.run.recipe.peft and subject.run.target in ("trainer", None):
        return
    message = f"'{given or _GATHER}' is {'false' if given else 'absent'}: {_WITHOUT[subject.run.target]}"
    severity: Severity | None = "info" if subject.run.target in ("deepspeed", None) else None
    # Without the Trainer or accelerate the script may never save in this way.
    fix = () if severity is not None else (SetValue(path, True),)
    place = (ZERO, given) if given else (ZERO,)
    hint = f'Set "{_GATHER}" to true' if given != _OLD else f"Write '{_GATHER}' in its place, with true"
    yield Hit(place, message, hint, fix, severity)
