"""Operators that make unwritten memory of the host resident: `zerokit rehearse host_memory.py [NAME...]`.

Each is called on tensors of 2.5 GiB: two that nobody has filled, one beside one whose contents depend on
parameters, and one that a single row of data was written into. Prints those that leave more resident than
what may be computed from no data (native/host_pages.cpp), and a little.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

BYTES = 2560 * 2**20
ALLOWED = 544 * 2**20
ROW = 1024

Operator = Callable[[Any, Any], object]
"""Takes two float32 host tensors of one size and returns what must stay alive."""


def by_name(name: str, *arguments: Any) -> Operator:
    return lambda x, _: getattr(x, name)(*arguments)


def rows(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, ROW)


def stepped(optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> object:
    parameter = torch.nn.Parameter(x)
    parameter.grad = y
    made = optimizer([parameter], lr=0.1)
    made.step()
    return made


def clipped(x: torch.Tensor, y: torch.Tensor) -> object:
    parameter = torch.nn.Parameter(x)
    parameter.grad = y
    return torch.nn.utils.clip_grad_norm_([parameter], 1.0)


_ALONE = (
    "zero_ abs_ neg_ sqrt_ exp_ relu_ sigmoid_ tanh_ reciprocal_ round_ clone contiguous detach cpu "
    "double half bfloat16 long bool numpy share_memory_ pin_memory normal_ uniform_ exponential_ random_ "
    "bernoulli_ t sum max norm isnan sort topk cumsum nonzero argmax"
)
_WITH = {"topk": (5,), "cumsum": (0,)}
_WITH_NUMBER = "add_ sub_ mul_ div_ pow_ fill_ add mul div pow eq gt clamp_"
INDEX = torch.arange(2)
OPERATORS: dict[str, Operator] = {
    **{name: by_name(name, *_WITH.get(name, ())) for name in _ALONE.split()},
    **{f"{name}({number})": by_name(name, number) for name in _WITH_NUMBER.split() for number in (0, 0.5)},
    "copy_": lambda x, y: x.copy_(y),
    "copy_ into half": lambda x, y: x[: x.numel() // 2].copy_(y[: y.numel() // 2]),
    "copy_ of one": lambda x, _: x.copy_(torch.ones(1)),
    "copy_ to another type": lambda x, y: torch.empty(x.shape, dtype=torch.bfloat16).copy_(y),
    "copy_ transposed": lambda x, y: rows(x).view(ROW, -1).t().copy_(rows(y)),
    "add_": lambda x, y: x.add_(y),
    "mul_": lambda x, y: x.mul_(y),
    "addcmul_": lambda x, y: x.addcmul_(y, y, value=0.5),
    "addcdiv_": lambda x, y: x.addcdiv_(y, y, value=0.5),
    "lerp_": lambda x, y: x.lerp_(y, 0.5),
    "copysign_": lambda x, y: x.copysign_(y),
    "maximum": torch.maximum,
    "add out": lambda x, y: torch.add(x, y, out=x),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "cat": lambda x, y: torch.cat([x, y]),
    "stack": lambda x, y: torch.stack([x, y]),
    "split": lambda x, _: [part.clone() for part in x.split(x.numel() // 8)],
    "slices": lambda x, y: [x[start : start + 2**22].copy_(y[: 2**22]) for start in (0, 2**22)],
    "small slices": lambda x, _: [rows(x)[start].fill_(1.0) for start in range(5)] and x.add_(1.0),
    "foreach add_": lambda x, y: torch._foreach_add_([x], [y]),
    "foreach mul_": lambda x, _: torch._foreach_mul_([x], 0.5),
    "foreach lerp_": lambda x, y: torch._foreach_lerp_([x], [y], 0.5),
    "foreach copy_": lambda x, y: torch._foreach_copy_([x], [y]),
    "foreach zero_": lambda x, _: torch._foreach_zero_([x]),
    "foreach sqrt": lambda x, _: torch._foreach_sqrt([x]),
    "index_copy_": lambda x, y: rows(x).index_copy_(0, INDEX, rows(y)[:2]),
    "index_fill_": lambda x, _: rows(x).index_fill_(0, INDEX, 1.0),
    "index_add_": lambda x, y: rows(x).index_add_(0, INDEX, rows(y)[:2]),
    "index_select": lambda x, _: rows(x).index_select(0, torch.arange(rows(x).shape[0])),
    "index": lambda x, _: rows(x)[torch.arange(rows(x).shape[0])],
    "gather": lambda x, _: x.gather(0, INDEX),
    "scatter_": lambda x, y: x.scatter_(0, INDEX, y[:2]),
    "masked_fill_": lambda x, y: x.masked_fill_(y > 1, 0.0),
    "setitem": lambda x, y: x.__setitem__(slice(None), y),
    "to float16": lambda x, _: x.to(torch.float16),
    "to copy": lambda x, _: x.to(torch.float32, copy=True),
    "to a gpu and back": lambda x, _: x.cuda().cpu(),
    "reshape": lambda x, _: rows(x).t().reshape(-1),
    "transposed contiguous": lambda x, _: rows(x).t().contiguous(),
    "pad": lambda x, _: torch.nn.functional.pad(x, (0, 8)),
    "roll": lambda x, _: x.roll(3),
    "repeat": lambda x, _: x[:ROW].repeat(x.numel() // ROW),
    "expanded": lambda x, _: torch.ones(1).expand(x.numel()).clone(),
    "outer": lambda x, _: torch.arange(2**15)[:, None] >= torch.arange(2**15)[None] + x[0].long(),
    "one_hot": lambda x, _: torch.nn.functional.one_hot(torch.arange(2**12), 2**15),
    "tril": lambda x, _: torch.ones(2**14, 2**14).tril(),
    "eye": lambda x, _: torch.eye(2**14),
    "linspace": lambda x, _: torch.linspace(0, 1, x.numel()),
    "chunks flattened": lambda x, _: torch._utils._flatten_dense_tensors(list(x.chunk(4))),
    "zeros_like": lambda x, _: torch.zeros_like(x),
    "ones_like": lambda x, _: torch.ones_like(x),
    "full_like": lambda x, _: torch.full_like(x, 0.5),
    "randn_like": lambda x, _: torch.randn_like(x),
    "new_zeros": lambda x, _: x.new_zeros(x.shape),
    "many ones": lambda x, _: [torch.ones(2**22) for _ in range(x.numel() // 2**22)],
    "resize_": lambda x, _: x.clone().resize_(x.numel() * 2),
    "read, then add_": lambda x, _: (x.sum(), x[:ROW].sum(), x.add_(0.5)),
    "numpy, then add_": lambda x, _: (x.numpy()[:10].fill(1), x.add_(0.5)),
    "linear": lambda x, _: torch.nn.functional.linear(torch.zeros(4, ROW), rows(x)),
    "a gpu's zeros of integers": lambda x, _: torch.zeros(x.nbytes, dtype=torch.int8, device="cuda"),
    "a gpu's range": lambda x, _: torch.arange(x.nbytes // 8, device="cuda"),
    "a gpu's random integers": lambda x, _: torch.randint(9, (x.nbytes // 8,), device="cuda"),
    "Adam": lambda x, y: stepped(torch.optim.AdamW, x, y),
    "Adam, fused": lambda x, y: stepped(lambda *a, **k: torch.optim.AdamW(*a, fused=True, **k), x, y),
    "SGD": lambda x, y: stepped(torch.optim.SGD, x, y),
    "clip_grad_norm_": clipped,
}


def never_filled() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(BYTES // 4), torch.empty(BYTES // 4)


def beside_made_up() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(BYTES // 4), torch.empty(BYTES // 4, device="cuda").cpu()


def of_one_row() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = never_filled()
    rows(x)[7].copy_(torch.arange(float(ROW)))
    return x, y


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def touched(names: list[str]) -> list[str]:
    """Those of the operators that leave more than :data:`ALLOWED` bytes resident, each with how many."""
    found = []
    for name in names:
        for make in (never_filled, beside_made_up, of_one_row):
            x, y = make()
            before = resident()
            kept = OPERATORS[name](x, y)
            grown = resident() - before
            del kept, x, y
            if grown > ALLOWED:
                found.append(f"{name}, {make.__name__}: {grown / 2**20:,.0f} MiB")
    return found


if __name__ == "__main__":
    worst = touched(sys.argv[1:] or list(OPERATORS))
    print(*worst, f"{len(worst)} make never-written memory resident", sep="\n", flush=True)
