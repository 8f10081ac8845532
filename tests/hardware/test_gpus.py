"""The catalogue of GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from zerokit.errors import ZerokitError
from zerokit.hardware import gpus as module
from zerokit.hardware.gpus import Gpu, find_gpu, gpu_names, gpus, some_gpu, sources
from zerokit.units import GIB, MIB

FIGURES = ("nominal_gb", "capability", "multiprocessors", "bandwidth", "tflops", "link", "host_link", "node", "price")
"""What a source is named for, where it is known; of the memory and the L2 cache below."""


@pytest.mark.parametrize("gpu", gpus(), ids=lambda gpu: gpu.name)
def test_every_card_has_memory_and_a_source_for_each_figure(gpu: Gpu) -> None:
    # GB are GiB on most boxes; drivers keep some, and so does ECC in GDDR memory.
    assert 0.89 < gpu.memory_bytes / (gpu.nominal_gb * GIB) < 1.0
    held = vars(gpu) | {"bandwidth": gpu.bandwidth_gb_s}
    known = {figure for figure in FIGURES if held[figure] is not None}
    known |= {"memory"} if gpu.memory_mib is not None else set()
    known |= {"l2"} if gpu.l2_mib is not None else set()
    if gpu.price is not None:
        known |= {"typical_price"} if gpu.price.typical else set()
        assert gpu.price.low <= gpu.price.usual <= gpu.price.high
    assert set(gpu.sources) == known
    assert set(gpu.sources.values()) <= sources().keys()
    assert gpu.tflops


@pytest.mark.parametrize("gpu", gpus(), ids=lambda gpu: gpu.name)
def test_every_name_finds_its_card(gpu: Gpu) -> None:
    for name in gpu_names(gpu):
        for spelling in (name, name.lower(), name.replace(" ", ""), name.replace("-", "_")):
            assert find_gpu(spelling) is gpu


def test_every_source_is_used() -> None:
    assert sources().keys() == {source for gpu in gpus() for source in gpu.sources.values()}


def test_a_name_is_of_one_card_only() -> None:
    folded = [{module._folded(name) for name in gpu_names(gpu)} for gpu in gpus()]
    assert sum(map(len, folded)) == len(set().union(*folded))


def test_a_key_that_there_is_not_in_the_file_is_refused() -> None:
    with pytest.raises(ValueError, match="bandwith_gb_s"):
        TypeAdapter(Gpu).validate_python({"name": "X", "bandwith_gb_s": 1})


@pytest.mark.parametrize(
    ("name", "found"),
    [
        *(("4090", "RTX 4090"), ("rtx4090", "RTX 4090"), ("GeForce RTX 4090", "RTX 4090"), ("5090", "RTX 5090")),
        *(("l4", "L4"), ("a6000", "RTX A6000"), ("6000 Ada", "RTX 6000 Ada"), ("mi300x", "MI300X")),
        *(("h100", "H100-SXM"), ("H100-80GB", "H100-SXM"), ("h100 pcie", "H100-PCIe"), ("b200", "B200")),
        *(("A100-80GB", "A100-80GB-SXM"), ("A100-80", "A100-80GB-SXM"), ("a100_40", "A100-40GB-SXM")),
        *(("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"), ("V100-16", "V100-16GB"), ("Tesla T4", "T4")),
        *(("AMD Instinct MI355X", "MI355X"), ("gh200", "GH200"), ("gaudi3", "Gaudi3")),
    ],
)
def test_cards_go_by_several_names(name: str, found: str) -> None:
    assert find_gpu(name).name == found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("H1000", "--gpu: there is no GPU 'H1000'. Did you mean 'H100'?"),
        ("a100", "--gpu: 'a100' may be several GPUs. Choose one of A100-40GB-SXM, A100-40GB-PCIe, A100-80GB-SXM"),
        ("4091", "--gpu: there is no GPU '4091'. Did you mean '4090'?"),
        ("l40", "--gpu: there is no GPU 'l40'. Did you mean 'L40S'?"),
        ("voodoo", "--gpu: there is no GPU 'voodoo'. 'zerokit gpus' lists those that there are"),
        *(  # no misspelt H200 and H100
            (card, f"--gpu: there is no GPU '{card}'. 'zerokit gpus' lists those that there are. For another")
            for card in ("2080", "1080", "RTX 2080 Ti")
        ),
        (
            "24GB",
            "--gpu: there is no GPU '24GB'. 'zerokit gpus' lists those that there are. For another card give "
            "its memory alone: --gpu-memory 24GB",
        ),
        ("", "--gpu: there is no GPU ''. 'zerokit gpus'"),
        ("RTX", "--gpu: there is no GPU 'RTX'. 'zerokit gpus'"),
    ],
)
def test_a_name_of_no_card_is_one_line(name: str, message: str) -> None:
    with pytest.raises(ZerokitError) as caught:
        find_gpu(name)
    assert str(caught.value).startswith(message)


def test_torch_s_own_figures_need_no_caveat() -> None:
    assert find_gpu("H100").memory_bytes == 85_028_896_768
    assert find_gpu("H100").memory_caveat is None


def test_an_estimated_memory_says_so() -> None:
    of_another, nominal = find_gpu("A10"), find_gpu("GH200")
    assert of_another.memory_bytes == find_gpu("A10G").memory_bytes
    assert "is that of the A10G" in str(of_another.memory_caveat)
    assert nominal.memory_bytes == round(0.98 * 96 * GIB)
    assert "94.08 GiB is the nominal 96 GB less 2% that drivers keep" in str(nominal.memory_caveat)


def test_the_estimate_keeps_as_much_as_the_drivers_of_cards_without_ecc_in_memory() -> None:
    shares = [
        gpu.memory_bytes / (gpu.nominal_gb * GIB)
        for gpu in gpus()
        if gpu.platform == "cuda" and gpu.sources.get("memory") == "torch"
    ]
    without_ecc = [share for share in shares if share > 0.95]
    assert len(without_ecc) > 10
    assert 0.975 < min(without_ecc) < 0.985
    assert max(without_ecc) < 1


def test_a_given_memory_is_taken_as_it_is() -> None:
    card = find_gpu("GH200").with_memory(80 * GIB)
    assert (card.memory_bytes, card.memory_caveat) == (80 * GIB, None)
    assert replace(card, memory_mib=None, sources=find_gpu("GH200").sources) == find_gpu("GH200")
    assert some_gpu("gh200", 80 * GIB) == card
    unnamed = some_gpu(None, 24 * GIB + 1)
    assert unnamed is not None
    assert (unnamed.memory_bytes, unnamed.memory_caveat) == (24 * GIB + 1, None)
    assert some_gpu(None, None) is None
    with pytest.raises(ZerokitError, match=r"1023\.00 KiB is no GPU's memory"):
        some_gpu(None, MIB - 1024)
