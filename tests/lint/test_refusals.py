from typing import Any

import pytest

from tests.lint.asking import found, zero
from zerokit.findings import Remove


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, "'gradient_clipping' 1, its default, needs the norm"),
        ({"gradient_clipping": 0.5}, "'gradient_clipping' 0.5 needs the norm"),
        ({"gradient_clipping": "auto"}, None),
        ({"gradient_clipping": 0}, None),
        ({"gradient_cliping": 0}, None),
    ],
)
def test_what_needs_the_norm(more: dict[str, Any], reason: str | None) -> None:
    messages = [finding.message for finding in found("grad-norm-off", {**zero(2, compute_grad_norm=False), **more})]
    assert messages == ([f"'compute_grad_norm' cannot be false: {reason}"] if reason else [])


@pytest.mark.parametrize(("stage", "severity"), [(0, "warning"), (1, "error"), (3, "error")])
def test_the_first_implementation_of_stage_1(stage: int, severity: str) -> None:
    (finding,) = found("legacy-stage1", zero(stage, legacy_stage1=True))
    assert finding.severity == severity
    assert finding.fix == (Remove(("zero_optimization", "legacy_stage1")),)
    assert found("legacy-stage1", zero(stage, legacy_stage1=False)) == []
