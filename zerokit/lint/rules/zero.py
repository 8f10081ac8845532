"""ZeRO stages and the keys that act in them."""

from collections.abc import Iterator, Mapping

from zerokit.config.base import ZERO, is_comment
from zerokit.lint.condition_words import is_idle_by_stage
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject
from zerokit.resolving.filled_keys import SIZE_RULES
from zerokit.units import listed


@rule("no-stage")
def no_stage(subject: Subject) -> Iterator[Hit]:
    """A section 'zero_optimization' without a stage"""
    section = subject.written_value(ZERO)
    if not isinstance(section, Mapping) or not subject.is_absent(ZERO, "stage"):
        return
    keys = [key for key in section if not is_comment(key)]
    if keys:
        message = f"no 'stage' is given, so ZeRO is off and {_listed(keys)} {_do(keys)} nothing"
        yield Hit((ZERO,), message, 'Add "stage": 1, 2 or 3')


@rule("stage0-keys")
def stage_0_keys(subject: Subject) -> Iterator[Hit]:
    """ZeRO options although ZeRO is off"""
    if subject.stage != 0:
        return
    keys = [str(path[1]) for path, unused in subject.unused.items() if is_idle_by_stage(unused, subject)]
    if keys:
        message = f"the stage is 0, so ZeRO is off and {_listed(keys)} {_do(keys)} nothing"
        yield Hit((ZERO,), message, "Use stage 1, 2 or 3, or remove what does nothing")


def _listed(keys: list[str]) -> str:
    shown = [f"'{key}'" for key in keys[:4]]
    if len(keys) > 4:
        return f"{', '.join(shown)} and {len(keys) - 4} more"
    return listed(shown)


def _do(keys: list[str]) -> str:
    return "does" if len(keys) == 1 else "do"


@rule("nothing-divided")
def nothing_divided(subject: Subject) -> Iterator[Hit]:
    """A persistence threshold that keeps most of the model on every GPU"""
    model, key = subject.run.model, "stage3_param_persistence_threshold"
    threshold = subject.zero.stage3_param_persistence_threshold
    if subject.stage != 3 or model is None or not isinstance(threshold, int) or subject.is_uncertain(ZERO, key):
        return
    kept = sum(tensor.total_elements for tensor in model.tensors if tensor.elements <= threshold)
    kept = min(kept, subject.zero.stage3_model_persistence_threshold)
    if kept > model.num_parameters / 10:
        message = (
            f"parameters of up to {threshold:,} elements stay whole on every GPU: "
            f"{kept / model.num_parameters:.0%} of the model"
        )
        wanted = SIZE_RULES[key].elements(model.hidden_size) if model.hidden_size else 100_000
        yield Hit(subject.nearest_set(ZERO, key), message, f'Set "{key}" to {wanted}')
