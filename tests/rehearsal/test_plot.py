from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.rehearsal.recordings import Recorder, job, large, training
from zerokit.errors import ZerokitError
from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.facts import RankFacts, RankTimes
from zerokit.rehearsal.native.clock import WorkKind
from zerokit.rehearsal.recording import SPAN
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.plots import write_plot, write_streams_plot
from zerokit.rehearsal.report.trace import phase_runs, thinned
from zerokit.reporting.phases import RUN_PHASES

GIB = 2**30


@pytest.fixture
def _matplotlib() -> None:
    pytest.importorskip("matplotlib")


@pytest.mark.usefixtures("_matplotlib")
def test_the_plot_names_categories_phases_and_capacity(tmp_path: Path) -> None:
    recording = training()
    write_plot(recording, analyse(recording, job()), tmp_path / "memory.svg", GIB)
    picture = (tmp_path / "memory.svg").read_text()
    for text in ("parameters", "optimizer states", "activations", "backward", "GPU, 1.00 GiB", "864.00 MiB"):
        assert f"<!-- {text} -->" in picture or text in picture
    assert "<pattern" in picture  # the hatching that replaces colours in black and white


@pytest.mark.usefixtures("_matplotlib")
def test_the_same_recording_gives_the_same_svg(tmp_path: Path) -> None:
    recording = training()
    for name in ("a.svg", "b.svg"):
        write_plot(recording, analyse(recording, job()), tmp_path / name, GIB)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.usefixtures("_matplotlib")
def test_nothing_is_cut_off_at_the_edges(tmp_path: Path) -> None:
    from matplotlib.image import imread

    recording = training()
    write_plot(recording, analyse(recording, job()), tmp_path / "memory.png", GIB)
    pixels = imread(tmp_path / "memory.png")
    for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
        assert (edge == edge[0]).all()  # the white of the margin


@pytest.mark.usefixtures("_matplotlib")
def test_a_long_run_makes_a_png_of_moderate_size(tmp_path: Path) -> None:
    recording = large()
    write_plot(recording, analyse(recording, job()), tmp_path / "memory.png", GIB)
    picture = (tmp_path / "memory.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 2_000_000


@pytest.mark.usefixtures("_matplotlib")
def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    recording = training()
    with pytest.raises(ZerokitError, match="absent"):
        write_plot(recording, analyse(recording, job()), tmp_path / "absent" / "memory.png", GIB)


@pytest.mark.usefixtures("_matplotlib")
def test_html_has_the_picture_and_the_categories_at_the_peak(tmp_path: Path) -> None:
    recording = training()
    write_plot(recording, analyse(recording, job()), tmp_path / "memory.html", GIB)
    page = (tmp_path / "memory.html").read_text()
    for text in ("<svg", "One GPU has 1.00 GiB", "<td>activations</td><td>384.00 MiB</td><td>44.4%</td>"):
        assert text in page


def test_thinning_keeps_the_peak_and_the_ends() -> None:
    total = np.random.default_rng(1).integers(0, 10**9, 100_000)
    places = thinned(total, 1000)
    assert len(places) <= 1002
    assert total[places].max() == total.max()
    assert (places[0], places[-1]) == (0, 99_999)
    assert thinned(total[:50], 1000).tolist() == list(range(50))


def test_phase_runs_cover_the_recording() -> None:
    runs = phase_runs(training())
    assert runs[0][2] == "init"
    assert [begin for begin, _, _ in runs[1:]] == [end for _, end, _ in runs[:-1]]
    assert runs[-1][1] == len(training().events)


@pytest.mark.usefixtures("_matplotlib")
def test_the_streams_of_a_step_are_drawn_over_its_time(tmp_path: Path) -> None:
    run = Recorder()
    run.phase = "forward"
    run.end_step(1)
    forward = RUN_PHASES.index("forward")
    work = [
        (0, 40_000_000, 0, WorkKind.KERNEL),
        (40_000_000, 60_000_000, 1001, WorkKind.MEETING),
        (60_000_000, 80_000_000, 1001, WorkKind.COLLECTIVE),
        (0, 80_000_000, -1, WorkKind.WAITING),
    ]
    spans = np.array([(begin, end, 0, 0, stream, kind, forward) for begin, end, stream, kind in work], SPAN)
    facts = RankFacts(times=RankTimes(step_ends=[80_000_000], model_flops=[1], tokens_per_step=[11]))
    recording = run.recording(spans=spans, ops=("aten::mm",), facts=facts)
    report = analyse(recording, job(timed_on=find_gpu("H100")))
    write_streams_plot(recording, report, tmp_path / "step.svg")
    picture = (tmp_path / "step.svg").read_text()
    for text in ("default stream", "communicator 1", "host", "waiting for other ranks", "step 1, 80.0 ms"):
        assert text in picture
