"""The optimizer, when its states are offloaded."""

from collections.abc import Iterator

from zerokit.config.params import offload_only
from zerokit.findings import Edit, Remove
from zerokit.lint.optimizer_facts import OPTIMIZER, optimizer_name, optimizer_params, optimizer_type
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject

_CHANGES_RESULTS = frozenset({"lr_decay", "initial_accumulator_value", "maximize"})


@rule("optimizer-argument")
def optimizer_argument_place(subject: Subject) -> Iterator[Hit]:
    """An argument that the optimizer accepts only on the GPU, or only on the CPU"""
    params, offloaded, name = optimizer_params(subject), subject.offloads_optimizer, optimizer_name(subject)
    if params is None or offloaded is None or name is None:
        return
    for key in sorted(params.model_fields_set & offload_only(type(params), offloaded=not offloaded)):
        path = (*OPTIMIZER, key)
        fix: tuple[Edit, ...] = () if key in _CHANGES_RESULTS else (Remove(path),)
        where = "offloaded" if offloaded else "not offloaded"
        if path in subject.unused:
            yield Hit(path, f"'{key}' {subject.unused[path].reason}", "Remove the key", fix, "warning")
        elif key != "fp32_optimizer_states" or name not in ("adam", "adamw", "muon"):
            message = f"'{optimizer_type(subject)}' does not take '{key}' where it is {where}"
            hint = "Remove the key" if fix else "Remove the key, or do not offload the optimizer"
            yield Hit(path, message, hint, fix)
