"""Defects of DeepSpeed that a config meets."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.lint.examples import ONE_SAMPLE
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject
from zerokit.releases.versions import Version

rule = Rules("versions")


@rule(
    "known-defect",
    bad={**ONE_SAMPLE, "gradient_accumulation_steps": 8, ZERO: {"stage": 2}},
    good={**ONE_SAMPLE, "gradient_accumulation_steps": 8, ZERO: {"stage": 1}},
    given={"deepspeed_version": Version(0, 18, 2)},
)
def known_defect(subject: Subject) -> Iterator[Hit]:
    """A setting that meets a known defect of this DeepSpeed release

    zerokit knows some fifty defects of DeepSpeed 0.14 to 0.19 that depend on the config: gradients lost in
    accumulation, races of overlapped communication, weights that are not updated. What always shows and does
    harm is an error; what may show, or only costs speed or memory, a warning.

    The rule runs with `--deepspeed-version` only, and gives the defect's name: `zerokit explain NAME` says
    when it shows. Defects that the newest release still has are rules of their own, such as
    `fp16-without-zero`.

    Source: DeepSpeed's pull requests and the sources of the releases; many were measured by training a small
    model with the release before and after.
    """
    version = subject.run.deepspeed_version
    if version is None:
        return
    from zerokit.lint.defects import KNOWN_DEFECTS

    for defect in KNOWN_DEFECTS.values():
        if not defect.affects(version):
            continue
        path = defect.met_at(subject)
        if path is not None:
            message = f"{defect.summary} (DeepSpeed {version}; zerokit explain {defect.id})"
            yield Hit(path, message, defect.advice, severity=defect.severity_in(subject))
