"""Cost of ``zerokit train`` over a bare loop: ``python -m tests.validation.benchmarks.overhead [--write]``.

Two pairs of CPU ranks with the same model, optimizer, ds_config and batches: ``zerokit train`` with its
Trainer, its logs and all its guards, and a loop of ``deepspeed.initialize``, ``backward`` and ``step`` with
nothing else. They run side by side and take turns of a few steps, one pair waiting while the other works, so
that a busy minute of the machine falls on both. The losses of all steps must be the same. What zerokit adds
hardly grows with the model, so that two sizes tell more than one. With ``--write`` the figures go into
results/overhead.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY, launch, tiny_llama, tiny_tokenizer

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "overhead.json"
WAYS = ("zerokit", "bare")
RANKS, TURNS, BATCH, SEQ_LEN = 2, 60, 4, 128
WARM = 2
"""Turns of each, before those that count."""
TOLERANCE = 1e-4
"""Of the loss of a step, in fp32."""
DS_CONFIG: dict[str, Any] = {
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 10_000_000, "allgather_bucket_size": 10_000_000},
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
}


@dataclass(frozen=True)
class Size:
    """Of a model, and so of its steps."""

    hidden_size: int
    layers: int
    steps_of_turn: int

    @property
    def steps(self) -> int:
        """In all turns."""
        return (WARM + TURNS) * self.steps_of_turn


SIZES = (Size(256, 4, steps_of_turn=5), Size(512, 8, steps_of_turn=1))
RATE = 1e-6
"""Small, as what one order of sums rounds otherwise than another grows with each step."""


def make(folder: Path, size: Size) -> None:
    """A model, and examples that fill a row each."""
    tiny_tokenizer(folder / "model")
    hidden = {"hidden_size": size.hidden_size, "intermediate_size": size.hidden_size * 11 // 4}
    tiny_llama(folder / "model", **hidden, num_hidden_layers=size.layers, max_position_embeddings=SEQ_LEN)
    lines = []
    for number in range(size.steps * BATCH * RANKS):
        digits = (f"{number:07d}" * SEQ_LEN)[: SEQ_LEN - 1]  # a token each, and the one that ends it
        lines.append(json.dumps({"prompt": digits[:1], "completion": digits[1:]}))
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    recipe = {
        "model": str(folder / "model"),
        "data": {"train": str(folder / "data.jsonl"), "eval_fraction": 0},
        "task": {"seq_len": SEQ_LEN},
        "training": {
            "output_dir": str(folder / "out"),
            "max_steps": size.steps,
            "learning_rate": RATE,
            "lr_scheduler_type": "constant",
            "train_sampling_strategy": "sequential",
            "save_strategy": "no",
            "report_to": "none",
            "seed": 0,
        },
        "deepspeed": DS_CONFIG,
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))


class Turns:
    """This rank's part in taking turns: every few steps it tells what they took, and waits."""

    def __init__(self, folder: Path, way: str) -> None:
        self._to_all = Client(str(folder / "turns"))
        self._to_all.send((way, int(os.environ["RANK"])))
        self._begun = self._wait()

    def _wait(self) -> tuple[float, float]:
        self._steps_left: int = self._to_all.recv()
        return time.perf_counter(), time.process_time()

    def step_ended(self) -> None:
        """Call after each step."""
        self._steps_left -= 1
        if not self._steps_left:
            wall, cpu = self._begun
            self._to_all.send((time.perf_counter() - wall, time.process_time() - cpu))
            self._begun = self._wait()


def on_rank(folder: Path, way: str) -> None:
    """All steps of one way, on one rank."""
    from zerokit.distributed.extensions import choose_extensions_folder

    choose_extensions_folder()
    {"zerokit": _zerokit, "bare": _bare}[way](folder)


def _zerokit(folder: Path) -> None:
    from transformers import TrainerCallback
    from transformers import trainer as module

    from zerokit.distributed.group import leave
    from zerokit.distributed.preemption import SAVE_WITHIN
    from zerokit.distributed.ranks import STUCK_AFTER
    from zerokit.training.main import main

    class Turn(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.turns = Turns(folder, "zerokit")

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.turns.step_ended()

        def on_train_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            (folder / "zerokit.json").write_text(json.dumps(losses))

    module.DEFAULT_CALLBACKS.append(Turn)
    leave(
        main(
            folder / "recipe.yaml",
            (),
            stuck_after=STUCK_AFTER,
            save_within=SAVE_WITHIN,
            force=False,
            trust_checkpoint=False,
            verify=True,
        )
    )


def _bare(folder: Path) -> None:
    import deepspeed
    import torch
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    deepspeed.init_distributed(dist_backend="gloo")
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=DS_CONFIG)
    batches = _batches(folder, dist.get_rank())
    losses, turns = [], Turns(folder, "bare")
    engine.train()
    for batch in batches:
        loss = engine(**batch, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
        turns.step_ended()
    mean = torch.stack(losses)
    dist.all_reduce(mean)
    means = (mean / RANKS).tolist()
    logged = [statistics.fmean(means[start : start + 10]) for start in range(0, len(means) // 10 * 10, 10)]
    (folder / "bare.json").write_text(json.dumps(logged))


def _batches(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Ready-made, as the model sees them: what reading and collating take counts against zerokit."""
    from transformers import AutoTokenizer

    from zerokit.data.sources import load_examples
    from zerokit.recipe.model import Columns, TaskSection
    from zerokit.training.examples import tokenize
    from zerokit.training.tasks.answers import AnswerEncoder
    from zerokit.training.tasks.causal_lm import PackedCollator

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    data = load_examples(str(folder / "data.jsonl"), where="data")
    encoder = AnswerEncoder(tokenizer, "prompt_completion", Columns(), TaskSection(seq_len=SEQ_LEN))
    rows = tokenize(data, encoder, seq_len=SEQ_LEN, where="data").dataset
    collate = PackedCollator(tokenizer.pad_token_id, SEQ_LEN, 8, shares=True)
    found = []
    for start in range(rank * BATCH, len(rows), RANKS * BATCH):
        batch = collate([rows[index] for index in range(start, start + BATCH)])
        assert batch.pop("attention_mask").all(), "there is padding"
        found.append(batch)
    return found


Turn = list[tuple[float, float]]
"""Seconds of the clock and of the processor, of each rank."""


def _take_turns(listener: Listener, steps: int, found: dict[str, list[Turn]]) -> None:
    """Have one way after the other go on for some steps, and note what each turn took."""
    ranks: dict[str, list[Connection]] = {way: [] for way in WAYS}
    for _ in range(len(WAYS) * RANKS):
        connection = listener.accept()
        way, _rank = connection.recv()
        ranks[way].append(connection)
    for turn in range(WARM + TURNS):
        for way in WAYS if turn % 2 else reversed(WAYS):
            for connection in ranks[way]:
                connection.send(steps)
            found[way].append([connection.recv() for connection in ranks[way]])
    for connection in ranks["zerokit"] + ranks["bare"]:
        connection.send(None)


def _around_median(ordered: list[float]) -> tuple[float, float]:
    """What the median lies between with 95 %, whatever the turns are distributed like: two of them.

    The number of turns below the median is binomial (Conover 1999, section 3.2).
    """
    outside = max(0, math.floor(len(ordered) / 2 - 0.98 * math.sqrt(len(ordered))) - 1)
    return ordered[outside], ordered[-1 - outside]


def measure(size: Size) -> dict[str, Any]:
    """What steps of a model of that size take, either way; ends the process where a run fails."""
    turns: dict[str, list[Turn]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor() as pool:
        folder = Path(temporary)
        make(folder, size)
        with Listener(str(folder / "turns")) as listener:
            pool.submit(_take_turns, listener, size.steps_of_turn, turns)
            words: dict[str, list[str | Path]] = {way: [Path(__file__), "--on-rank", folder, way] for way in WAYS}
            env = {"PYTHONPATH": str(REPOSITORY)}
            runs = [pool.submit(launch, words[way], ranks=RANKS, launcher="torchrun", env=env) for way in WAYS]
            for run in runs:
                ended = run.result()
                if ended.returncode:
                    print(f"{ended.stdout[-2000:]}\n{ended.stderr[-6000:]}", file=sys.stderr)
                    os._exit(1)  # the other pair waits for its turn
        losses = [json.loads((folder / f"{way}.json").read_text()) for way in WAYS]
    different = max(abs(ours - theirs) for ours, theirs in zip(*losses, strict=True))
    if different > TOLERANCE:
        sys.exit(f"the losses are others: {losses}")
    result: dict[str, Any] = {
        "hidden_size": size.hidden_size,
        "layers": size.layers,
        "steps": TURNS * size.steps_of_turn,
        "losses_differ_by_at_most": different,
    }
    # A step ends with its slowest rank; what it costs is what both spend.
    kinds: dict[str, Callable[[Turn], float]] = {
        "wall": lambda turn: max(wall for wall, _ in turn),
        "cpu": lambda turn: sum(cpu for _, cpu in turn),
    }
    for kind, of in kinds.items():
        ours, theirs = ([of(turn) / size.steps_of_turn for turn in turns[way][WARM:]] for way in WAYS)
        ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        result[kind] = {
            "zerokit_seconds_per_step": round(statistics.median(ours), 4),
            "bare_seconds_per_step": round(statistics.median(theirs), 4),
            "ratio": round(statistics.median(ratios), 4),
            "between": [round(one, 4) for one in _around_median(ratios)],
            "of_each_turn": [round(one, 4) for one in ratios],
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--on-rank", nargs=2, metavar=("FOLDER", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on_rank is not None:
        on_rank(Path(options.on_rank[0]), options.on_rank[1])
        return
    result = {
        "ranks": RANKS,
        "micro_batch_size": BATCH,
        "seq_len": SEQ_LEN,
        "zero_stage": DS_CONFIG["zero_optimization"]["stage"],
        "sizes": [measure(size) for size in SIZES],
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.write:
        WRITTEN.write_text(text + "\n")


if __name__ == "__main__":
    main()
