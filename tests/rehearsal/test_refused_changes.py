"""Changes that a run refuses, or that cannot be rehearsed: what is tried instead, and what is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rehearsal.recordings import job, timed, training
from zerokit.errors import ZerokitError
from zerokit.rehearsal.parent.advice import advise, candidates
from zerokit.rehearsal.parent.job import RehearsalJob
from zerokit.rehearsal.parent.processes import Output, rehearse_together
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.report import RehearsalReport, TimeReport

REPORT = analyse(training(), job())
REFUSAL = "You are using ZeRO-Offload with a client provided optimizer"


def _timed(seconds: float) -> TimeReport:
    time = timed("all_reduce", launching=0).time
    assert time is not None
    return time.model_copy(update={"step_seconds": seconds, "tokens_per_second": 1 / seconds})


@pytest.mark.parametrize("own_optimizer", [False, True])
def test_what_is_told_is_of_what_is_set(own_optimizer: bool, tmp_path: Path) -> None:
    """DeepSpeed refuses to offload a script's own optimizer, unless a second key says that it may."""

    def rehearse(changed: RehearsalJob, _stop: object) -> RehearsalReport:
        made = changed.overrides.get("ds_config", {})
        seconds = 1.0
        if made.get("zero_optimization.offload_optimizer.device"):
            forced = made.get("zero_force_ds_cpu_optimizer", True)
            if forced and own_optimizer:
                raise ZerokitError(f"the script fails (ZeRORuntimeException: {REFUSAL} (AdamW) ...)")
            seconds = 0.5 if forced else 0.6
        return REPORT.model_copy(update={"time": _timed(seconds)})

    report = REPORT.model_copy(update={"time": _timed(1.0)})
    advice, failed = advise(report, job(), tmp_path, rehearse)
    (offload,) = [one for one in advice if "optimizer on the host" in one.change]
    how = '"zero_optimization": {"offload_optimizer": {"device": "cpu"}}'
    keys = {"zero_optimization.offload_optimizer.device": "cpu"}
    if own_optimizer:
        how += ', "zero_force_ds_cpu_optimizer": false'
        keys |= {"zero_force_ds_cpu_optimizer": False}
    assert (offload.how, offload.ds_config) == (how, keys)
    assert offload.step_seconds == (0.6 if own_optimizer else 0.5)
    assert not failed


@pytest.mark.parametrize(
    ("first", "told"),
    [
        ("did not end in the time allowed", ("optimizer on the host", "did not end in the time allowed")),
        (REFUSAL, ("optimizer on the host, as the script makes it", "has no CPU kernel")),
    ],
)
def test_what_fails_is_told_with_its_own_error(first: str, told: tuple[str, str], tmp_path: Path) -> None:
    """And another way is tried only where DeepSpeed refuses the first."""

    def rehearse(changed: RehearsalJob, _stop: object) -> RehearsalReport:
        made = changed.overrides.get("ds_config", {})
        if "zero_force_ds_cpu_optimizer" in made:
            raise ZerokitError("has no CPU kernel")
        if "zero_optimization.offload_optimizer.device" in made:
            raise ZerokitError(first)
        return REPORT

    _, failed = advise(REPORT, job(), tmp_path, rehearse)
    assert [(one.change, one.why) for one in failed] == [told]


@pytest.mark.rehearsal
@pytest.mark.torch
def test_deepspeed_refuses_a_scripts_own_optimizer_in_these_words(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import deepspeed, torch\n"
        "model = torch.nn.Linear(8, 8)\n"
        "config = {'train_micro_batch_size_per_gpu': 1, 'zero_optimization': {'stage': 2}}\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "deepspeed.initialize(model=model, optimizer=optimizer, config=config)\n"
    )
    (offload,) = (one for one in candidates(REPORT) if one.change == "optimizer on the host")
    here = job(script=str(script), cwd=str(tmp_path), recording_file=str(tmp_path / "rank-0.npz"))
    with pytest.raises(ZerokitError) as caught:
        rehearse_together([offload.applied_to(here, tmp_path, 1)], output=Output.DROPPED)
    assert offload.refusal
    assert offload.refusal in caught.value.message


@pytest.mark.rehearsal
@pytest.mark.torch
def test_what_a_script_printed_before_does_not_hide_why_it_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    script = tmp_path / "train.py"
    script.write_text("print('begins')\nraise KeyError('best')\n")  # a file gets the first line at the end
    here = job(script=str(script), cwd=str(tmp_path), recording_file=str(tmp_path / "rank-0.npz"))
    with pytest.raises(ZerokitError, match=r"\(KeyError: 'best'\)"):
        rehearse_together([here], output=Output.DROPPED)
