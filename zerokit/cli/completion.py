"""The values that a shell completes, beside options and the words of closed lists, which typer knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def _beginning(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    def complete(begun: str) -> list[str]:
        # Names are read in any case, and shells complete what is typed.
        typed = (name.lower() if begun.islower() else name for name in names())
        return [name for name in typed if name.startswith(begun)]

    return complete


def _gpus() -> Iterable[str]:
    from zerokit.hardware.gpus import gpus

    return (gpu.name for gpu in gpus())


def _models() -> Iterable[str]:
    from zerokit.models.catalogue import entries

    return (name for entry in entries() for name in (entry.short_names[0], entry.id))


def _presets() -> Iterable[str]:
    from zerokit.writing.presets import PRESETS

    return PRESETS


def _rules() -> Iterable[str]:
    from zerokit.lint.run import all_rules

    return all_rules()


def _explained() -> Iterable[str]:
    from zerokit.lint.defects import KNOWN_DEFECTS

    return (*_rules(), *KNOWN_DEFECTS)


gpu = _beginning(_gpus)
model = _beginning(_models)
preset = _beginning(_presets)
rule = _beginning(_rules)
explained = _beginning(_explained)
