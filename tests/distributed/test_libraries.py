"""What libraries may say."""

from __future__ import annotations

import logging

import pytest

from zerokit.distributed.libraries import suppress_false_alarms


@pytest.mark.parametrize(
    ("logger", "text"),
    [
        ("accelerate.accelerator", "Gradient accumulation steps mismatch: GradientAccumulationPlugin has"),
        (
            "transformers.trainer_utils",
            "Warning: The following arguments do not match the ones in the `trainer_state.json` within",
        ),
    ],
)
def test_a_warning_of_no_mistake_is_left_out(logger: str, text: str) -> None:
    suppress_false_alarms()
    record = logging.LogRecord(logger, logging.WARNING, "", 1, text, None, None)
    assert not logging.getLogger(logger).filter(record)
    record.msg = "something else"
    assert logging.getLogger(logger).filter(record)
