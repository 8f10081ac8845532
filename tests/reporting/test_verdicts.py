from __future__ import annotations

import pytest

from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import find_gpu
from zerokit.reporting.verdicts import SHORT, VERDICTS, Verdict, exit_code, host_fit, judge, verdict_line, worst
from zerokit.units import GIB, MIB, format_span

TIGHT = "Tight: needs 53.00 to 61.00 GiB, the card has 58.00 GiB. Each host also needs"
HOST = "60.50 to 68.00 GiB of each host's 16.00 GiB"
NO_HOST = f"Does not fit in host memory: needs {HOST}"
NOT = "Does not fit: needs 70.00 to 80.00 GiB of 58.00 GiB, and"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1, 24, "fits"),
        (24, 24, "fits"),
        (23, 25, "tight"),
        (23, 26, "likely does not fit"),
        (24, 25, "likely does not fit"),
        (25, 25, "does not fit"),
    ],
)
def test_the_judge(low: int, high: int, verdict: Verdict) -> None:
    assert judge(low, high, 24) == verdict


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([], 0),
        (["fits"], 0),
        (["tight"], 0),
        (["likely does not fit"], 1),
        (["does not fit"], 1),
        (["does not fit", "likely does not fit"], 1),
        (["does not fit", "tight"], 0),
    ],
)
def test_no_is_1_only_where_no_run_may_fit(verdicts: list[Verdict], code: int) -> None:
    assert exit_code(verdicts) == code


def test_every_verdict_has_words_and_a_style() -> None:
    sizes = ((1, 2), (23, 25), (23, 27), (25, 26))
    lines = [
        verdict_line(verdict, low * GIB, high * GIB, 24 * GIB)
        for verdict, (low, high) in zip(VERDICTS, sizes, strict=True)
    ]
    assert [line.plain for line in lines] == [
        "Fits: needs 1.00 to 2.00 GiB of 24.00 GiB",
        "Tight: needs 23.00 to 25.00 GiB, the card has 24.00 GiB",
        "Likely does not fit: needs 23.00 to 27.00 GiB, the card has 24.00 GiB; 75% of this range is above it",
        "Does not fit: needs 25.00 to 26.00 GiB of 24.00 GiB",
    ]
    assert len({str(line.spans[0].style) for line in lines}) == 3
    assert set(SHORT) == set(VERDICTS)


@pytest.mark.parametrize(
    ("cluster", "tensors", "verdict", "words"),
    [
        (Cluster(2, host_bytes=64 * GIB), 170 * GIB, "does not fit", "178.00 GiB of each host's 64.00 GiB, and"),
        (Cluster(2, host_bytes=175 * GIB), 170 * GIB, "tight", "Tight in host memory: needs 170.50"),
        (Cluster(2, host_bytes=256 * GIB), 170 * GIB, "fits", "GiB of 24.00 GiB, and 170.50"),
        (Cluster(4, 8, find_gpu("H100")), 170 * GIB, "fits", "host's 900.00 GiB (a typical cloud node;"),
        (Cluster(2, 1, find_gpu("H100")), 300 * GIB, "does not fit", "host's 225.00 GiB (a typical"),
        (Cluster(2, gpu=find_gpu("4090")), 170 * GIB, "fits", "Fits, if each host has 170.50 to 178.00 GiB"),
        (Cluster(2, gpu=find_gpu("4090")), 16 * GIB, "fits", "Fits: needs 1.00 to 2.00 GiB of 24.00 GiB"),
    ],
)
def test_a_run_fits_where_its_host_holds_it(cluster: Cluster, tensors: int, verdict: Verdict, words: str) -> None:
    host = host_fit(cluster, tensors, 0)
    assert host.verdict == verdict
    line = verdict_line(worst("fits", host.verdict), GIB, 2 * GIB, 24 * GIB, host).plain
    assert words in line
    assert "--host-memory" not in verdict_line("fits", GIB, 2 * GIB, 24 * GIB, host, has_options=False).plain
    assert verdict_line("fits", GIB, 2 * GIB, 24 * GIB, host_fit(cluster, tensors, GIB)).plain.endswith(
        "and 1.00 GiB of each host's NVMe"
    )


@pytest.mark.parametrize(
    ("host_memory", "needed", "line"),
    [
        (None, (53, 61), f"{TIGHT} 60.50 to 68.00 GiB (--host-memory) and 1.00 GiB of its NVMe"),
        (256, (53, 61), f"{TIGHT} 60.50 to 68.00 GiB of its 256.00 GiB and 1.00 GiB of its NVMe"),
        (16, (53, 61), f"{NO_HOST}, and 53.00 to 61.00 GiB of each GPU's 58.00 GiB"),
        (16, (70, 80), f"{NOT} {HOST}"),
        (None, (70, 80), f"{NOT} 1.00 GiB of each host's NVMe"),
    ],
)
def test_the_line_says_which_memory_is_short(host_memory: int | None, needed: tuple[int, int], line: str) -> None:
    cluster = Cluster(2, gpu=find_gpu("4090"), host_bytes=host_memory and host_memory * GIB)
    low, high = (size * GIB for size in needed)
    host = host_fit(cluster, 60 * GIB, GIB)
    verdict = worst(judge(low, high, 58 * GIB), host.verdict)
    assert verdict_line(verdict, low, high, 58 * GIB, host).plain.startswith(line)


def test_a_span_names_the_unit_once_if_it_is_the_same() -> None:
    assert format_span(MIB, GIB) == "1.00 MiB to 1.00 GiB"
    assert format_span(GIB, 3 * GIB) == "1.00 to 3.00 GiB"
    assert format_span(GIB, GIB) == "1.00 GiB"
    assert format_span(0, 5) == "0 to 5 B"
    assert format_span(0, GIB) == "0 B to 1.00 GiB"
