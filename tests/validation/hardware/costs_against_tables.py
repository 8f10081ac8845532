"""How well the costs hold against measured kernels, each shape left out of the fit that costs it.

``python -m tests.validation.hardware.costs_against_tables`` prints the errors and writes them to
``results/kernel_costs.json``. Left out at once is every row of the same sides (a layer's product and
both of its gradients), and every row of attention of the same batch, heads, length and head size. Nothing is
fitted to attention written out in torch; the figures of collectives that are fitted (``start``, ``switch``)
see all rows.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from tests.tiny import REPOSITORY
from tests.validation.percentiles import nearest_rank
from tools.kernel_costs.fit import attention_rows, fit_attention, fit_matmul, matmul_cards, matmul_rows, tables
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.attention import Attention
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.costs.figures import figures
from zerokit.hardware.gpus import find_gpu

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "kernel_costs.json"

Row = Sequence[Any]


def held_out(rows: Sequence[Row], key: Callable[[Row], Any], errors_of: Any) -> list[float]:
    """Relative errors of all rows, those of one key by a fit of the others."""
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return [
        error
        for one, left_out in groups.items()
        for error in errors_of([row for row in rows if key(row) != one], left_out)
    ]


def matmul_errors(card: str) -> list[float]:
    """Of the card's products."""
    cluster = Cluster(1, gpu=find_gpu(card))
    kind = "fp16" if "bf16" not in find_gpu(card).tflops else "bf16"
    dtype = {"fp16": "float16", "bf16": "bfloat16"}[kind]
    peak = 1e12 * find_gpu(card).tflops[kind]

    def errors(others: Sequence[Row], left_out: Sequence[Row]) -> list[float]:
        curve = {"matmul": {kind: vars(fit_matmul(others))}}
        costs = CardCosts(cluster, figures() | {"kernels": curve})
        return [
            costs.matmul(m, n, k, dtype=dtype, layout=layout) * peak * share / (2 * m * n * k) - 1
            for _, layout, m, n, k, share in left_out
        ]

    return held_out(matmul_rows(card), lambda row: tuple(sorted(row[2:5])), errors)


def passes_of(row: Row) -> list[bool]:
    """Whether each measured pass is the backward one."""
    return {"forward": [False], "backward": [True], "both": [False, True]}[row[2]]


def measured_seconds(row: Row) -> float:
    """Of a row of attention; its operations are those of all pairs, halved if it is causal."""
    _, _, _, causal, batch, heads, _, length, head_dim, tflops, _ = row
    flops = 4 * batch * heads * length**2 * head_dim * (0.5 if causal else 1)
    return flops * sum(2.5 if backward else 1 for backward in passes_of(row)) / (tflops * 1e12)


def attention_errors(card: str, kernel: str) -> list[float]:
    """Of a kernel on a card."""
    peak, multiprocessors = (tables()["cards"][card][key] for key in ("peak_tflops", "multiprocessors"))

    def errors(others: Sequence[Row], left_out: Sequence[Row]) -> list[float]:
        curve = fit_attention(others, peak * 1e12, multiprocessors)
        found = []
        for row in left_out:
            _, _, _, causal, batch, heads, kv_heads, length, head_dim, _, _ = row
            call = Attention(batch, heads, kv_heads, length, length, head_dim, causal)
            seconds = sum(
                curve.peak_flops(call, backward, multiprocessors) / (peak * 1e12) for backward in passes_of(row)
            )
            found.append(seconds / measured_seconds(row) - 1)
        return found

    return held_out(attention_rows(card, kernel), lambda row: (*row[4:6], *row[7:9]), errors)


def eager_errors(card: str) -> list[float]:
    """Of attention written out in torch."""
    costs = CardCosts(Cluster(1, gpu=find_gpu(card)))
    found = []
    for row in attention_rows(card, "eager"):
        _, _, _, causal, batch, heads, kv_heads, length, head_dim, _, _ = row
        shape = (batch, heads, kv_heads, length, length, head_dim, causal, "float16")
        seconds = sum(costs.attention("eager", backward, *shape) for backward in passes_of(row))
        found.append(seconds / measured_seconds(row) - 1)
    return found


def collective_errors(card: str, ranks: int, nodes: int, smallest: int, largest: int) -> list[float]:
    """Of collectives of so many bytes."""
    found = []
    for name, kind, of_ranks, of_nodes, num_bytes, bus, _ in tables()["collectives"]:
        if (name, of_ranks, of_nodes) == (card, ranks, nodes) and smallest <= num_bytes <= largest:
            total = ranks * nodes
            rounds = 2 if kind == "all_reduce" else 1
            measured = rounds * (total - 1) / total * num_bytes / (bus * 1e9)
            costs = CardCosts(Cluster(total, gpu=find_gpu(card)))
            found.append(costs.collective(kind, num_bytes, ranks, nodes) / measured - 1)
    return found


def all_errors() -> dict[str, list[float]]:
    """By what was timed."""
    kernels = sorted({(row[0], row[1]) for row in tables()["attention"]})
    found = {f"matmul, {card}": matmul_errors(card) for card in matmul_cards()}
    found |= {
        f"{kernel}, {card}": eager_errors(card) if kernel == "eager" else attention_errors(card, kernel)
        for card, kernel in kernels
    }
    for card, ranks, nodes in sorted({(row[0], *row[2:4]) for row in tables()["collectives"]}):
        where = f"{card}, {nodes} x {ranks}"
        for name, sizes in (("below", (0, 2**24 - 1)), ("from", (2**24, 2**40))):
            if errors := collective_errors(card, ranks, nodes, *sizes):
                found[f"collectives {name} 16 MiB, {where}"] = errors
    return found


def summary(errors: Sequence[float]) -> dict[str, float]:
    """Median, 90th percentile and worst of the sizes of relative errors, and their middle with its sign."""
    sizes = sorted(map(abs, errors))
    return {
        "rows": len(errors),
        "median": round(statistics.median(sizes), 3),
        "p90": round(nearest_rank(sizes, 0.9), 3),
        "worst": round(sizes[-1], 3),
        "bias": round(statistics.median(errors), 3),
    }


def main() -> None:
    """Prints and writes the table."""
    found = {name: summary(errors) for name, errors in all_errors().items()}
    for name, one in found.items():
        print(f"{name:45}" + "".join(f"{key} {value:<8}" for key, value in one.items()))
    document = {"command": "python -m tests.validation.hardware.costs_against_tables", "errors": found}
    WRITTEN.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
