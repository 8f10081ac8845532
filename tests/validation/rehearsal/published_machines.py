"""The machines of published runs, and their cards as files for ``--hardware``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.tiny import REPOSITORY
from zerokit.hardware.gpus import find_gpu


@dataclass(frozen=True)
class Machines:
    """The machines of a row."""

    card: str
    """By its name in the catalogue."""
    gpus: int
    gpus_per_node: int = 8
    network_gbit_s: float | None = None
    """None: as the catalogue says; likewise:"""
    bandwidth_gb_s: float | None = None
    """Of the card's memory."""


def card_of(machines: Machines) -> dict[str, Any]:
    """The catalogue's card with another memory, or in a machine with another network."""
    name = find_gpu(machines.card).name
    catalogue = json.loads((REPOSITORY / "zerokit" / "hardware" / "gpus.json").read_text(encoding="utf-8"))
    card: dict[str, Any] = next(one for one in catalogue["gpus"] if one["name"] == name)
    node = {"gpus": machines.gpus_per_node, "ram_gib": 1800} | card.get("node", {})
    kept = {key: value for key, value in card.items() if key not in ("sources", "cost")}
    if machines.network_gbit_s is not None:
        kept["node"] = node | {"network_gbit_s": machines.network_gbit_s}
    if machines.bandwidth_gb_s is not None:
        kept["bandwidth_gb_s"] = machines.bandwidth_gb_s
    return kept
