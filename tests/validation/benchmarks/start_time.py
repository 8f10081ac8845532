"""The light commands next to a bare Python and to importing DeepSpeed: ``make bench``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.tiny import REPOSITORY
from tests.validation.benchmarks.cost import costs_in_turn, print_ratios

ZEROKIT = str(Path(sys.executable).with_name("zerokit"))
PRESET = str(REPOSITORY / "ds_configs" / "zero2.json")
RUNS = 5
BARE, HEAVY = "python -c pass", "import deepspeed"
COMMANDS = {
    BARE: [sys.executable, "-c", "pass"],
    HEAVY: [sys.executable, "-c", "import deepspeed"],
    "zerokit --version": [ZEROKIT, "--version"],
    "zerokit check": [ZEROKIT, "check", PRESET],
    "zerokit config": [ZEROKIT, "config", "--zero-stage", "2"],
    "zerokit schema": [ZEROKIT, "schema"],
}


def main() -> None:
    print_ratios(costs_in_turn(COMMANDS, RUNS), BARE, HEAVY)


if __name__ == "__main__":
    main()
