"""Starts its ranks itself, by torch.multiprocessing.spawn or a Process for each, beside one that is none."""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor

import deepspeed
import torch
import torch.multiprocessing as mp
from small_training import FEATURES, small_model, sound_config


def train(rank: int, num_ranks: int, steps: int) -> None:
    torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", rank=rank, world_size=num_ranks)
    engine, *_ = deepspeed.initialize(model=small_model(), config=sound_config())
    for _ in range(steps):
        inputs = torch.randn(2, FEATURES, device=engine.device).bfloat16()
        engine.backward(engine(inputs).float().sum())
        engine.step()
    print(f"trained rank {torch.distributed.get_rank()} as {rank}")


def answer(queue: mp.Queue[str]) -> None:
    queue.put(f"another process sees {torch.cuda.get_device_properties(0).name}")


def name_of_gpu() -> str:
    return torch.cuda.get_device_properties(0).name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--how", choices=["spawn", "process"], default="spawn")
    parser.add_argument("--ranks", type=int, default=4)
    args = parser.parse_args()
    if args.how == "spawn":
        mp.spawn(train, args=(args.ranks, 2), nprocs=args.ranks)
        return
    spawning = mp.get_context("spawn")
    queue: mp.Queue[str] = spawning.Queue()
    other = spawning.Process(target=answer, args=(queue,))
    other.start()
    print(queue.get(timeout=300))  # a process that begins anew finds no GPU, and does not answer
    other.join()
    with ProcessPoolExecutor(2, mp_context=spawning) as pool:
        names = {task.result(timeout=300) for task in [pool.submit(name_of_gpu) for _ in range(8)]}
        print(f"workers of an executor see {names.pop()}")
    processes = [mp.Process(target=train, args=(rank, args.ranks, 2)) for rank in range(args.ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


if __name__ == "__main__":
    main()
