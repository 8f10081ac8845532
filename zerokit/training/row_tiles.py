"""A function of rows, such as an MLP or a loss of tokens, computed in tiles: few rows are in memory at a time."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

OfRows = Callable[[Tensor, slice], Tensor]
"""Some rows, and which they are -> their outputs, a row each, or the sum of them."""


class RowTiles(torch.autograd.Function):
    """The output of each row. The backward pass computes a tile again, and sums gradients of parameters in fp32."""

    @staticmethod
    def forward(ctx: Any, of_rows: OfRows, size: int, rows: Tensor, *used: Tensor) -> Tensor:
        """With `used`, the parameters that outputs depend on in addition to the rows."""
        ctx.save_for_backward(rows)
        # A checkpoint would save parameters as copies, which under ZeRO-3 have no gradients.
        ctx.of_rows, ctx.size, ctx.used = of_rows, size, used
        device = rows.device.type
        ctx.autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        ctx.random = torch.get_rng_state(), *get_device_states(rows)
        outputs = None
        for part in _parts(rows, size):
            of_part = of_rows(rows[part], part)
            if outputs is None:
                outputs = of_part.new_empty(len(rows), *of_part.shape[1:])
            outputs[part] = of_part
        assert outputs is not None
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, worth: Tensor) -> tuple[Tensor | None, ...]:
        """`worth`: gradients of the outputs."""
        (rows,) = ctx.saved_tensors
        wants_rows, *wanted = ctx.needs_input_grad[2:]
        used = [parameter for parameter, wants in zip(ctx.used, wanted, strict=True) if wants]
        of_rows = torch.empty_like(rows) if wants_rows else None
        of_used = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in used]
        device, dtype, is_on = ctx.autocast
        on_cpu, devices, on_devices = ctx.random
        with torch.random.fork_rng(devices, device_type=device):  # dropout draws what it drew before
            torch.set_rng_state(on_cpu)
            set_device_states(devices, on_devices, device_type=device)
            for part in _parts(rows, ctx.size):
                tile = rows[part].detach().requires_grad_(wants_rows)
                with torch.enable_grad(), torch.autocast(device, dtype, is_on):
                    outputs = ctx.of_rows(tile, part)
                found = list(torch.autograd.grad(outputs, [*([tile] if wants_rows else []), *used], worth[part]))
                del outputs
                if of_rows is not None:
                    of_rows[part] = found.pop(0)
                for gradient, of_tile in zip(of_used, found, strict=True):
                    gradient += of_tile
        rest = iter(of_used)
        return None, None, of_rows, *(next(rest) if wants else None for wants in wanted)


def _parts(rows: Tensor, size: int) -> list[slice]:
    """Slices of the rows, at least one: without rows, gradients are 0, not None."""
    return [slice(start, start + size) for start in range(0, max(len(rows), 1), size)]
