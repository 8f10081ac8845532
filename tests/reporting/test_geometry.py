"""Where things lie in the pictures, by matplotlib's own renderer."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.estimation.requests import answer, shape
from tests.rehearsal.recordings import job, training
from zerokit.estimation.plot import write_plot
from zerokit.memory import Estimate
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.drawings import write_plot as write_rehearsal
from zerokit.units import GIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

pytestmark = pytest.mark.torch

LARGE: dict[str, Any] = {"model": shape("llama-3-70b"), "zero_stage": 0, "seq_len": 8192}
RUNS: dict[str, list[Estimate]] = {
    "one": [answer()],
    "alike": [answer()] * 6,
    "stages": [answer(zero_stage=stage) for stage in range(4)],
    "offloaded": [
        answer(zero_stage=3, offload_optimizer=where, offload_param=where) for where in (None, "cpu", "nvme")
    ],
    "of five digits": [answer(**LARGE, micro_batch_size=1000 + one) for one in range(3)],
    "all sizes": [
        answer(zero_stage=stage, num_gpus=8 * 4**stage, seq_len=1024 * 8**stage, micro_batch_size=1 + stage)
        for stage in range(3)
    ],
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are written from now on."""
    matplotlib = pytest.importorskip("matplotlib.figure")
    figures: list[Figure] = []
    monkeypatch.setattr(matplotlib.Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


def assert_nothing_collides(figure: Figure) -> None:
    from matplotlib.text import Text

    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_visible()]
    lines = [(f"a line at {line.get_ydata()}", line.get_window_extent()) for line in figure.axes[0].lines]
    assert len(boxes) > 10
    for (first, one), (second, other) in combinations(boxes, 2):
        assert not one.overlaps(other), (first, second)
    # A line across the axes may cross nothing that is written in them, either.
    for what, text in boxes:
        for name, line in lines:
            assert not text.overlaps(line), (what, name)


@pytest.mark.parametrize(
    ("name", "capacity"), list(zip(RUNS, [1.02, 1.0, 1.05, 0.9, 1.002, 2.4], strict=True))
)
def test_labels_of_estimates_do_not_collide(
    name: str, capacity: float, drawn: list[Figure], tmp_path: Path
) -> None:
    runs = RUNS[name]
    memory = int(runs[0].device.peak_bytes * capacity)
    write_plot(runs, tmp_path / "a.png", memory)
    assert_nothing_collides(drawn[0])


def test_the_line_of_the_card_lies_over_the_bars_of_the_card_alone(
    drawn: list[Figure], tmp_path: Path
) -> None:
    runs = RUNS["stages"]
    memory = runs[0].device.peak_bytes
    write_plot(runs, tmp_path / "a.png", memory)
    axes = drawn[0].axes[0]
    at_card = [
        tuple(segment[:, 0])
        for lines in axes.collections
        for segment in lines.get_segments()  # type: ignore[attr-defined]
        if (segment[:, 1] == memory / GIB).all()
    ]
    bars = sorted({(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches})
    # From the left: the GPU's and the host's of each run.
    assert at_card == [pytest.approx(bar) for bar in bars[::2]]
    assert len(bars) == 2 * len(runs)
    assert {len(line.get_xdata()) for line in axes.lines} == {1}  # ends of whiskers: no line across all


@pytest.mark.parametrize(("layers", "capacity"), [(1, 1.0), (4, 1.01), (30, 2.0)])
def test_labels_of_a_rehearsal_do_not_collide(
    layers: int, capacity: float, drawn: list[Figure], tmp_path: Path
) -> None:
    recording = training(layers, steps=3)
    report = analyse(recording, job())
    write_rehearsal(recording, report, tmp_path / "a.png", int(report.device.peak_bytes * capacity))
    assert_nothing_collides(drawn[0])
