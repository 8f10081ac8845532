"""Rank 0 saves weights, and every rank reads them: from a path, an open file, and over an older file."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 1024


def described(read: Any) -> list[Any]:
    return [(name, str(one.device), tuple(one.shape)) for name, one in read.items()]


dist.init_process_group("nccl")
rank = dist.get_rank()
tied = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
model = nn.Sequential(*tied).cuda()
weight = tied[1].weight = tied[0].weight
if rank == 0:
    torch.save(model.state_dict(), "model.pt")
    with Path("opened.pt").open("wb") as opened:
        torch.save(model.state_dict(), opened)
dist.barrier()
read = torch.load("model.pt", map_location=f"cuda:{rank}")
model.load_state_dict(read)
assert described(read) == described(torch.load("opened.pt", map_location=f"cuda:{rank}"))
assert read["0.weight"].data_ptr() == read["1.weight"].data_ptr()

# Over an older file, by a rank that comes to the barrier last.
if rank == 0:
    while not Path("is-there").exists():
        pass
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(200)]
    torch.save({"newer": weight}, "older.pt")
else:
    Path("is-there").touch()
dist.barrier()
read = torch.load("older.pt", map_location=f"cuda:{rank}")
assert described(read) == [("newer", f"cuda:{rank}", (WIDTH, WIDTH))], described(read)

# As a rank reads again that writes into a folder of its own.
own, values = f"of-{rank}.pt", f"values-{rank}.pt"
with Path(own).open("wb") as file:
    torch.save({"own": weight.detach()[:, 1:]}, file)
for source in (own, Path(own)):
    (part,) = torch.load(source).values()
    assert (tuple(part.shape), part.stride(), part.storage_offset()) == ((WIDTH, WIDTH - 1), (WIDTH, 1), 1)
with Path(own).open("rb") as saved:
    assert described(torch.load(saved)) == [("own", f"cuda:{rank}", (WIDTH, WIDTH - 1))]

# An older file, then a left-out one over it, then a written one over that.
best = f"best-{rank}.pt"
torch.save({"best": torch.arange(7)}, best)
assert torch.load(best)["best"].tolist() == list(range(7))
torch.save({"best": weight}, best)
assert described(torch.load(best)) == [("best", f"cuda:{rank}", (WIDTH, WIDTH))]
torch.save({"best": torch.arange(9)}, best)
assert torch.load(best)["best"].tolist() == list(range(9))

# One allocation for what shared one; small values of the host are kept, in views of a large one, too.
before = torch.cuda.memory_allocated()
flat = torch.empty(4 * WIDTH * WIDTH, device="cuda")
numbers = torch.arange(WIDTH * WIDTH)
torch.save({"views": flat.chunk(4), "count": numbers[5:9], "parameter": weight}, f"views-{rank}.pt")
with_flat = torch.cuda.memory_allocated() - before
again = torch.load(f"views-{rank}.pt")
assert torch.cuda.memory_allocated() - before == with_flat + flat.nbytes + weight.nbytes
assert again["count"].tolist() == [5, 6, 7, 8]
assert isinstance(again["parameter"], nn.Parameter)
assert again["parameter"].requires_grad


# A class of the script's own is read as the installed torch reads it, with its own words.
class Progress:
    def __init__(self, step: int) -> None:
        self.step = step


def refused(load: Callable[[], Any], kind: type[Exception]) -> str:
    try:
        load()
    except kind as error:
        return str(error)
    raise AssertionError("was not refused")


torch.save({"progress": Progress(3)}, values)  # which is really written
torch.save(obj={"weight": weight, "progress": Progress(3), "more": weight}, f=own)
said = refused(lambda: torch.load(values, weights_only=True), pickle.UnpicklingError)
assert refused(lambda: torch.load(own, weights_only=True), pickle.UnpicklingError) == said
assert torch.load(own, weights_only=False)["progress"].step == 3
if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6):
    assert refused(lambda: torch.load(own), pickle.UnpicklingError) == refused(
        lambda: torch.load(values), pickle.UnpicklingError
    )
torch.serialization.add_safe_globals([Progress])
read = torch.load(own, weights_only=True)
assert (read["progress"].step, read["weight"].data_ptr()) == (3, read["more"].data_ptr())

# What pickle cannot write is not said to be saved.
refused(lambda: torch.save({"weight": weight, "made": lambda: 0}, own), Exception)

# What nobody saves is missing on every rank.
try:
    torch.load("nobody-saves-this.pt")
except FileNotFoundError:
    print("read by", rank, flush=True)
dist.all_reduce(torch.ones(8, device="cuda"))
