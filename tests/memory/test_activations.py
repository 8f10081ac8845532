"""Activations by formula, against transformers' own models on a virtual GPU, for every family.

Two layers, with few tokens in the vocabulary: the point is the layer. Whole runs are compared by
`python -m tests.validation.memory.against_rehearsal`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.combinations import ALL
from tests.memory.runs import ds_config
from tests.tiny import REPOSITORY
from tests.validation.memory.families import BY_TYPE, with_layers, with_vocabulary
from zerokit.hardware.cluster import Cluster
from zerokit.memory import TrainingRun
from zerokit.memory.gpu import sizes_of_run
from zerokit.memory.layout import Parameter, layout_of
from zerokit.memory.model_blocks import model_calls_of
from zerokit.memory.overheads import UNCHECKED_ACTIVATIONS
from zerokit.memory.recording import RecordedRun
from zerokit.memory.replay import Switches, recorded_pass
from zerokit.memory.same_object import SameObject
from zerokit.memory.settings import settings_of
from zerokit.memory.stage import GRADIENTS, PARAMETERS, ROUNDING, Stage0, block_bytes, hold_parameters
from zerokit.memory.traits import all_traits
from zerokit.models import load_model_shape

pytestmark = [pytest.mark.torch, pytest.mark.rehearsal]

SCRIPT = REPOSITORY / "tests" / "memory" / "scripts" / "activations.py"
BATCH, SEQ = 8, 500
MODELED = sorted(set(BY_TYPE) - {"vit"})


@dataclass(frozen=True)
class Case:
    """One model, trained for one step."""

    model_type: str
    attention: str
    checkpointing: bool = False
    precision: str = "bf16"
    window: int | None = None

    @property
    def config(self) -> dict[str, Any]:
        known = with_vocabulary(with_layers(BY_TYPE[self.model_type][0].config, 2), 2048)
        return {**known, "sliding_window": self.window} if self.window else known

    def described(self) -> dict[str, Any]:
        architecture = load_model_shape(self.config).architecture
        if architecture == "BartModel":
            architecture = "BartForConditionalGeneration"
        sizes = {"batch": BATCH, "seq": SEQ, "architecture": architecture}
        return {**vars(self), "config": self.config, **sizes}

    def run(self) -> TrainingRun:
        return TrainingRun(
            model=load_model_shape(self.config),
            ds_config=ds_config(0, self.precision),
            cluster=Cluster(1),
            micro_batch_size=BATCH,
            seq_len=SEQ,
            gradient_checkpointing=self.checkpointing,
            attention=self.attention,  # type: ignore[arg-type]
        )


def _cases() -> list[Case]:
    cases = [Case("llama", "eager", precision="fp32")]
    cases += [Case(kind, "sdpa", window=SEQ) for kind in ("cohere2", "gemma3_text", "mistral", "phi3")]
    cases += [Case("mistral", "sdpa", checkpointing=True, window=SEQ)]
    for model_type in MODELED:
        has_sdpa = load_model_shape(BY_TYPE[model_type][0].config).has_sdpa
        for attention in ["eager", *(["sdpa"] if has_sdpa else [])]:
            cases += [Case(model_type, attention)]
            if attention == ("sdpa" if has_sdpa else "eager") or ALL:
                cases += [Case(model_type, attention, checkpointing=True)]
    return cases


CASES = _cases()
CHECKED = {model_type for model_type, traits in all_traits().items() if traits.checked}


class _NoOptimizer(Stage0):
    """Parameters, and gradients as autograd leaves them."""

    def start(self) -> None:
        hold_parameters(self._timeline, PARAMETERS, self._settings.parameter_bytes, self._layout.parameters)

    def make_states(self) -> None: ...

    def ready(self, parameter: Parameter) -> None:
        super().ready(parameter)
        size = self._settings.parameter_bytes * parameter.elements
        self._timeline.hold(ROUNDING, 1, block_bytes(size) - size)

    def end_backward(self, *, boundary: bool) -> None: ...

    def step(self) -> None: ...


@dataclass(frozen=True)
class Prediction:
    """Bytes of a case by the formulas."""

    saved_by_second_layer: int
    parameters: int
    peak: int
    activations: int
    """Of the peak."""


def predict(case: Case) -> Prediction:
    run = case.run()
    settings, layout = settings_of(run), layout_of(run)
    sizes = sizes_of_run(run, settings)
    assert sizes is not None
    assert not isinstance(run.model, int)
    calls = model_calls_of(run.model, layout, sizes)
    switches = Switches(e=settings.parameter_bytes, checkpointing=case.checkpointing)
    one_pass = recorded_pass(calls, sizes, SameObject(layout.parameters), switches, gathers=False)
    recorded = RecordedRun()
    stage = _NoOptimizer(recorded, layout, settings)
    stage.start()
    recorded.act("end")
    before = recorded.play().total
    recorded.enter("forward")
    recorded.play_pass(stage, one_pass)
    recorded.enter("step")
    stage.step()
    recorded.act("end")
    timeline = recorded.play(one_pass)
    layers = [block for block in calls.blocks if block.is_layer]
    states = {PARAMETERS, ROUNDING, GRADIENTS}
    fullest = max(timeline.fullest.values(), key=lambda held: sum(u * n for c in held.values() for u, n in c.items()))
    activations = sum(
        unit * count
        for kind, counts in fullest.items()
        if kind not in states and kind.category == "activations"
        for unit, count in counts.items()
    )
    return Prediction(layers[1].saved_bytes * sizes.tokens, before, timeline.peak_bytes, activations)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, dict[str, int]]:
    file: Path = tmp_path_factory.mktemp("activations") / "cases.json"
    file.write_text(json.dumps([case.described() for case in CASES]), encoding="utf-8")
    done = processes.checked([sys.executable, SCRIPT, file], cwd=REPOSITORY)
    return dict(zip(CASES, json.loads(done.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("case", [case for case in CASES if case.model_type in CHECKED], ids=str)
def test_formulas_say_what_a_layer_saves_and_what_a_step_takes(
    case: Case, measured: dict[Case, dict[str, int]]
) -> None:
    real, formula = measured[case], predict(case)
    if not case.checkpointing:
        assert formula.saved_by_second_layer == pytest.approx(real["saved_by_second_layer"], rel=0.012)
    # Beside parameters, and buffers that a few models keep.
    rehearsed = real["peak"] - real["parameters"]
    assert -0.05 < (formula.peak - formula.parameters) / rehearsed - 1 < 0.06


@pytest.mark.parametrize("case", [case for case in CASES if case.model_type not in CHECKED], ids=str)
def test_the_interval_of_other_families_holds_the_truth(case: Case, measured: dict[Case, dict[str, int]]) -> None:
    formula = predict(case)
    low, high = (formula.peak + (factor - 1) * formula.activations for factor in UNCHECKED_ACTIVATIONS)
    assert low <= measured[case]["peak"] <= high


def test_every_family_of_the_catalogue_is_compared() -> None:
    assert set(BY_TYPE) >= CHECKED
    assert {case.model_type for case in CASES} == set(BY_TYPE) - {"vit"}
