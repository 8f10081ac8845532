"""Captures CUDA graphs: `memory` prints what torch says of them, `train` makes steps of them, `streams` times one."""

from __future__ import annotations

import sys

import torch

MIB = 2**20


def seen(what: str) -> None:
    print(what, torch.cuda.memory_allocated() // MIB, torch.cuda.memory_reserved() // MIB)


def matrix() -> torch.Tensor:
    return torch.zeros(1024, 1024, device="cuda")


def memory() -> None:
    x = matrix()
    seen("start")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        first = x + 1
        second = first * 2
        del first
        out = second - 1
        del second
    seen("captured")
    beside = [x + 1, x + 2]
    seen("beside")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        graph.replay()
    seen("replayed")
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    shared = torch.cuda.CUDAGraph()
    with torch.cuda.graph(shared, pool=graph.pool()):
        other = x * 3
    seen("shared")
    own = torch.cuda.CUDAGraph()
    with torch.cuda.graph(own, pool=torch.cuda.graph_pool_handle()):
        third = x * 4
    seen("own")
    del out, other, third, beside
    torch.cuda.empty_cache()
    seen("released")
    del graph, own
    torch.cuda.empty_cache()
    seen("one is left")
    shared.reset()
    torch.cuda.empty_cache()
    seen("none is left")
    try:
        shared.replay()
    except RuntimeError as error:
        print(error)


def train() -> None:
    model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    inputs = matrix()

    def iterate() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(inputs).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        iterate()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        iterate()
    for step in range(9):
        graph.replay()
        print("replayed", step + 1)


def callables() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False, device="cuda") for _ in range(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = matrix()
    graphed = torch.cuda.make_graphed_callables(model, (inputs,))
    for _ in range(9):
        graphed(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def streams() -> None:
    inputs = torch.zeros(8192, 8192, device="cuda")
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        here = inputs @ inputs
        with torch.cuda.stream(side):
            there = inputs @ inputs
        torch.cuda.current_stream().wait_stream(side)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    print("replay of", here.shape, there.shape, begin.elapsed_time(end))


if __name__ == "__main__":
    {"memory": memory, "train": train, "callables": callables, "streams": streams}[sys.argv[1]]()
