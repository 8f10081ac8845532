"""Triton kernels that nobody knows: an autotuned one that writes through a helper, and one that counts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

ROWS, COLUMNS = 4096, 1024


@triton.jit
def put(pointer, values, mask):
    tl.store(pointer, values, mask=mask)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 512}), triton.Config({"BLOCK": 256})], key=["count"], restore_value=["into"]
)
@triton.heuristics({"EVEN": lambda arguments: arguments["count"] % arguments["BLOCK"] == 0})
@triton.jit
def scale(values, into, factors, count, BLOCK: tl.constexpr, EVEN: tl.constexpr):  # noqa: N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    read = tl.load(values + places, mask=mask)
    address = into + places
    put(address, read * tl.load(factors), mask)


@triton.jit
def count_larger(values, counted, count, BLOCK: tl.constexpr):  # noqa: N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    read = tl.load(values + places, mask=places < count)
    tl.atomic_add(counted, tl.sum((read > 0).to(tl.int32)))


def blocks(arguments: dict[str, int]) -> tuple[int]:
    return (triton.cdiv(arguments["count"], arguments["BLOCK"]),)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context, values, factors):
        result = torch.empty_like(values)
        scale[blocks](values, result, factors, values.numel())
        context.save_for_backward(factors)
        return result

    @staticmethod
    def backward(context, gradient):
        result = torch.empty_like(gradient)
        scale[blocks](gradient, result, *context.saved_tensors, gradient.numel())
        return result, None


def main() -> None:
    model = torch.nn.Linear(COLUMNS, COLUMNS, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    factors = torch.tensor([2.0, 3.0], device="cuda")
    counted = torch.full((1,), 7, dtype=torch.int32, device="cuda")
    for _ in range(2):
        values = model(torch.zeros(ROWS, COLUMNS, device="cuda"))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        scaled = Scaled.apply(values, factors)
        print("peak", torch.cuda.max_memory_allocated() - before)
        count_larger[blocks](scaled, counted, scaled.numel(), BLOCK=256)
        loss = scaled.mean()
        loss.backward()
        optimizer.step()
    print("configuration", scale.best_config.kwargs["BLOCK"])
    print("target", triton.runtime.driver.active.get_current_target().arch)
    print("read", factors.tolist(), "counted", counted.item(), "loss", loss.item())
    count_larger.add_pre_run_hook(lambda *_, **given: print("hook", given["num_warps"]))
    for name, values, given in (
        ("pointer", torch.zeros(8), {"num_warps": 8}),
        ("keyword", factors, {"num_warps": 4, "BLOKSIZE": 64}),
    ):
        try:
            count_larger[(1,)](values, counted, 8, BLOCK=256, **given)
        except (ValueError, KeyError) as error:
            print(name, error)


if __name__ == "__main__":
    main()
