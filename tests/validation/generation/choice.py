"""Seconds of the mode that ``--mode auto`` chooses, compared with the fastest of all modes, on two CPU ranks.

``python -m tests.validation.generation.choice [SIZE ...]`` keeps two ranks per mode alive with the loaded model, and
has the modes decode the same prompts by turns: only one of them works at a time, so that a busy machine is busy for
all. It writes ``tests/validation/results/generation_choice.json``: for each model size, batch size and length the
least seconds of each mode, without start and loading, and how much slower the automatic choice is than the best. It
also records the CPU seconds of the slower rank: other programs change them less, but they leave out waiting.

A batch of N rows means N sequences for each rank, all in one batch; "alone" is a single sequence for both ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY, tiny_llama, tiny_tokenizer

SIZES: dict[str, dict[str, Any]] = {
    "1M": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4},
    "10M": {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6},
    "60M": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 9},
}
MODES = ("replicated", "tensor", "sharded", "offloaded")
BATCHES: dict[str, tuple[int, int]] = {"1": (1, 2), "16": (16, 32), "alone": (1, 1), "4": (4, 8)}
"""Rows of a rank at once, and sequences of both ranks."""
LENGTHS = {"16 + 24": (16, 24), "128 + 6": (128, 6)}
"""Tokens of each prompt, and new ones."""
FEWEST, MOST, SECONDS = 3, 9, 12.0
"""Turns of each mode at each point: at least and at most; between the two they end after so many seconds of all."""
HOPELESS = 3
"""A mode whose first turn takes this many times the best one's gets no more."""
RESULT = REPOSITORY / "tests" / "validation" / "results" / "generation_choice.json"


def work(folder: Path, mode: str) -> None:
    """A rank: answers each line of stdin, a point, with the seconds that this rank took, and the mode of ``auto``."""
    from zerokit.distributed.extensions import compile_extensions
    from zerokit.distributed.group import RankGroup
    from zerokit.distributed.libraries import set_up_libraries
    from zerokit.distributed.ranks import read_ranks
    from zerokit.generation.ds_config import plan_engine
    from zerokit.generation.engine import Generator, find_device
    from zerokit.generation.main import Job, decode
    from zerokit.generation.mode import Work, choose_mode
    from zerokit.generation.model import read_model
    from zerokit.generation.options import Options
    from zerokit.generation.requests import requests_of
    from zerokit.generation.sampling import Sampling, settle_sampling

    group = RankGroup(read_ranks({**os.environ}))
    set_up_libraries(group.ranks)
    named = Options(model=str(folder), texts=("x",), mode=mode)  # type: ignore[arg-type]
    files = read_model(folder, named)
    engine = plan_engine(None, requested_dtype="auto", model=files, device=find_device())
    compile_extensions(group, cpu_optimizer=None)
    generator = None
    for line in sys.stdin:
        batch, sequences, prompt, new = json.loads(line)
        group.gather_objects(None)
        sampling = settle_sampling(Sampling({"max_new_tokens": new, "min_new_tokens": new}, {}), files)
        tokens = [[2 + (7 * row + place) % 300 for place in range(prompt)] for row in range(sequences)]
        requests = requests_of(tokens, 1)
        size = {"batch_size": batch}
        auto = choose_mode(group, engine, files, Options(model="", texts=("x",), **size), Work.of(requests, new))
        options = Options(model="", texts=("x",), mode=mode, **size)  # type: ignore[arg-type]
        chosen = choose_mode(group, engine, files, options, Work.of(requests, new))
        generator = generator or Generator(files, chosen, group.ranks, trust_remote_code=False)
        job = Job(options, files, chosen, sampling, requests, 0, None)
        group.gather_objects(None)
        started, cpu = time.perf_counter(), time.process_time()
        decode(group, job, generator, None)
        taken = group.gather_objects((time.perf_counter() - started, time.process_time() - cpu))
        if group.ranks.is_main:
            os.write(3, f"{json.dumps([*map(max, zip(*taken, strict=True)), auto.mode])}\n".encode())


class Ranks:
    """Two ranks that stay alive, in one mode."""

    def __init__(self, folder: Path, mode: str, port: int) -> None:
        from zerokit.distributed.extensions import own_folder

        common = {
            **os.environ,
            **{"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            **{"TORCH_EXTENSIONS_DIR": str(own_folder()), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            **{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        }
        reads, writes = os.pipe()
        log = (folder / f"{mode}.log").open("w")
        words = ["bash", "-c", f'exec 3>&{writes}; exec "$0" "$@"', sys.executable, "-m", __spec__.name, "work"]
        self.processes = [
            subprocess.Popen(
                [*words, str(folder), mode],
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[writes],
                cwd=REPOSITORY,
                text=True,
            )
            for rank in range(2)
        ]
        os.close(writes)
        self.answers = os.fdopen(reads)
        self.log = folder / f"{mode}.log"

    def run(self, point: list[int]) -> tuple[float, float, str]:
        """Seconds and CPU seconds of the slower rank, and the mode that ``auto`` means."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{json.dumps(point)}\n")
            process.stdin.flush()
        answer = self.answers.readline()
        if not answer:
            raise SystemExit(self.log.read_text()[-4000:])
        seconds, cpu_seconds, auto = json.loads(answer)
        return seconds, cpu_seconds, auto

    def end(self) -> None:
        """End both: at the end of their input."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            process.wait()


def measure(size: str) -> Iterator[dict[str, Any]]:
    """A row for each batch size and length."""
    from zerokit.distributed.ranks import free_port

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny_tokenizer(folder)
        shape: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "initializer_range": 0.02}
        parameters = tiny_llama(folder, **SIZES[size], **shape).num_parameters()
        modes = {mode: Ranks(folder, mode, free_port()) for mode in MODES}
        for batch, (batch_size, sequences) in BATCHES.items():
            for length, (prompt, new) in LENGTHS.items():
                point = [batch_size, sequences, prompt, new]
                wall: dict[str, list[float]] = {mode: [] for mode in MODES}
                cpu: dict[str, list[float]] = {mode: [] for mode in MODES}
                auto, turns = "", 0
                while turns < FEWEST or (turns < MOST and sum(map(sum, wall.values())) < SECONDS):
                    best = min(map(min, filter(None, wall.values())), default=0.0)
                    for mode, ranks in modes.items():
                        if turns and wall[mode][0] > HOPELESS * best:
                            continue
                        if not turns:
                            ranks.run(point)  # warms up
                        seconds, cpu_seconds, auto = ranks.run(point)
                        wall[mode].append(seconds)
                        cpu[mode].append(cpu_seconds)
                    turns += 1
                least, cpu_least = ({mode: min(taken) for mode, taken in each.items()} for each in (wall, cpu))
                yield {
                    **{"parameters": parameters, "batch": batch, "tokens": length, "turns": turns},
                    "seconds": {mode: round(taken, 4) for mode, taken in least.items()},
                    "cpu_seconds": {mode: round(taken, 4) for mode, taken in cpu_least.items()},
                    **{"auto": auto, "slower": round(least[auto] / min(least.values()) - 1, 4)},
                }
        for ranks in modes.values():
            ranks.end()


def main(sizes: list[str]) -> None:
    """Measure sizes, print the rows, and write the record."""
    record = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {}
    for size in sizes or SIZES:
        rows = record.setdefault("rows", {})[size] = []
        for row in measure(size):
            rows.append(row)
            print(size, json.dumps(row), flush=True)
            every = [row for rows in record["rows"].values() for row in rows]
            record["summary"] = {
                "points": len(every),
                "more_than_10_percent_slower": sum(row["slower"] > 0.1 for row in every),
                "worst": max(row["slower"] for row in every),
            }
            RESULT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(record["summary"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(Path(sys.argv[2]), sys.argv[3])
    else:
        main(sys.argv[1:])
