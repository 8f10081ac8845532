"""Saved outputs of failed rehearsals, beside logs of the same scripts on a cluster."""

from __future__ import annotations

import pytest

from tests.exits.explained import explain

RAISED = (
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 7, in <module>',
    "    engine.sept()",
    "AttributeError: 'DeepSpeedEngine' object has no attribute 'sept'",
)
LEFT = "[2026-11-22 10:00:00,1] [ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = 1"
FAILS = "zerokit: error: {}: the script fails {}. What is printed above is what the cluster would show"


@pytest.mark.parametrize("script", ["train.py", "train.py (rank 7)"])
@pytest.mark.parametrize(
    "moment", ["before its first optimizer step was done", "after 1 optimizer step", "after 1,200 optimizer steps"]
)
def test_the_rehearsal_of_a_script_is_explained_as_its_run_is(script: str, moment: str) -> None:
    found = explain(*RAISED, FAILS.format(script, moment))
    assert found == explain(*RAISED, LEFT)
    assert (found.cause, found.fix) == ("exception", "Look at /w/train.py:7")


def test_a_rehearsal_of_which_only_the_end_was_kept_is_known_to_have_failed() -> None:
    found = explain(FAILS.format("train.py", "after 1 optimizer step"))
    assert (found.cause, found.line) == ("rehearsal", 2)


def test_what_a_rehearsal_itself_lacks_is_a_cause() -> None:
    assert explain("zerokit: error: train.py:12: no stand-in for aten::bincount").cause == "zerokit"
