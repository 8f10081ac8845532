"""``zerokit gpus``, and the options that every command has for a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import typer

from tests.cli.conftest import refused
from zerokit.cli.main import command_line
from zerokit.hardware.gpus import gpus

Run = Callable[..., tuple[int, str, str]]
COMMANDS = dict(typer.main.get_command(command_line()).commands)  # type: ignore[attr-defined]
ASKING = ("check", "config", "estimate", "rehearse")


def test_every_card_has_a_line(zerokit: Run) -> None:
    code, out, err = zerokit("gpus")
    assert (code, err) == (0, "")
    for gpu in gpus():
        (line,) = (line for line in out.splitlines() if line.startswith(f"{gpu.name} "))
        assert f"{gpu.memory_bytes / 2**30:.2f} GiB" in line
        assert ("~" in line) == (gpu.memory_caveat is not None)


def test_a_part_of_a_name_filters(zerokit: Run) -> None:
    code, out, _ = zerokit("gpus", "a100", "--format", "json")
    data = json.loads(out)
    assert code == 0
    assert [gpu["name"] for gpu in data["gpus"]] == [
        *("A100-40GB-SXM", "A100-40GB-PCIe", "A100-80GB-SXM", "A100-80GB-PCIe")
    ]
    assert data["gpus"][0]["memory_bytes"] == 40_441 * 2**20
    assert data["sources"][data["gpus"][0]["sources"]["memory"]].startswith("torch's own report")


def test_a_card_says_what_of_it_was_measured(zerokit: Run) -> None:
    _, out, _ = zerokit("gpus")
    ends = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in out.splitlines()}
    assert ends["B200"] == "matmul, attention, memory, links"
    assert ends["H200"] == "matmul, attention, memory, links"
    assert ends["RTX 4090"] == "-"
    _, out, _ = zerokit("gpus", "h200", "--format", "json")
    assert json.loads(out)["gpus"][0]["measured"] == {
        "matmul": "many shapes",
        "attention": "cudnn, flash_attention_2, flash_attention_3",
        "memory_bound": "bandwidth by size",
        "collective": "bus bandwidth",
    }


def test_prices_that_are_equal_are_no_range(zerokit: Run) -> None:
    _, out, _ = zerokit("gpus")
    ranges = {gpu.name: gpu.price for gpu in gpus() if gpu.price is not None}
    single = {name: price.low for name, price in ranges.items() if price.low == price.high}
    assert single
    for name, usd in single.items():
        assert f"  {usd:.2f}  " in next(line for line in out.splitlines() if line.startswith(f"{name} "))


def test_a_part_of_no_name_gives_2(zerokit: Run) -> None:
    assert zerokit("gpus", "voodoo") == (
        *(2, ""),
        "zerokit: error: NAME: no GPU has 'voodoo' in its name. Leave it out for all of them\n",
    )


def test_commands_that_ask_for_a_gpu_have_the_same_two_options() -> None:
    options = {
        name: {option.name: (option.opts, option.metavar) for option in command.params}
        for name, command in COMMANDS.items()
    }
    asking = {name for name, found in options.items() if {"gpu", "gpu_memory"} & found.keys()}
    assert asking == {*ASKING, "plan"}  # which chooses among cards with a price
    for name in ASKING:
        several = "[,NAME...]" * (name == "estimate")
        assert options[name]["gpu"] == (["--gpu"], f"NAME{several}")
        key = "gpu_memory_bytes" if name == "rehearse" else "gpu_memory"
        assert options[name][key] == (["--gpu-memory"], "SIZE")


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--gpu", "H1000", "--gpu: there is no GPU 'H1000'. Did you mean 'H100'?"),
        ("--gpu", "a100", "--gpu: 'a100' may be several GPUs. Choose one of"),
        ("--gpu-memory", "much", "--gpu-memory: 'much' is not a size in bytes"),
        ("--gpu-memory", "80", "--gpu-memory: '80' is less than a MiB. Write it like 80GiB"),
    ],
)
@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.torch] if name == "rehearse" else []) for name in ASKING]
)
def test_they_refuse_the_same(
    zerokit: Run, tmp_path: object, command: str, option: str, text: str, message: str
) -> None:
    words = {
        "check": ["ds_configs/zero2.json"],
        "config": ["--zero-stage", 2],
        "estimate": ["7B", "--num-gpus", 4, "--zero-stage", 2],
        "rehearse": ["--num-gpus", 4, __file__],
    }[command]
    assert message in refused(zerokit, command, option, text, *words)


def test_a_card_bounds_the_buckets_as_its_memory_does(zerokit: Run) -> None:
    words = ("config", "--zero-stage", 2, "--target", "deepspeed", "--model", "llama-3.1-405b")
    of_card = zerokit(*words, "--gpu", "4090")
    assert of_card == zerokit(*words, "--gpu-memory", f"{24_217 * 2**20}")
    assert of_card != zerokit(*words)


def test_an_estimated_memory_is_noted_on_stderr(zerokit: Run) -> None:
    code, out, err = zerokit(
        "estimate", "7B", "--num-gpus", 8, "--zero-stage", 2, "--gpu", "gh200", "--format", "json"
    )
    assert code == 0
    assert json.loads(out)["fit"]["gpu_memory_bytes"] == round(0.98 * 96 * 2**30)
    assert err == (
        "zerokit: note: what torch reports of GH200 is not published: 94.08 GiB is the nominal 96 GB "
        "less 2% that drivers keep\n"
    )


def test_a_card_may_have_another_memory(zerokit: Run) -> None:
    words = ("estimate", "7B", "--num-gpus", 8, "--zero-stage", 2, "--format", "json")
    _, out, err = zerokit(*words, "--gpu", "gh200", "--gpu-memory", "40GiB")
    assert (json.loads(out)["fit"]["gpu_memory_bytes"], err) == (40 * 2**30, "")
