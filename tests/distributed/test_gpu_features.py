"""What of ZeRO is refused on CPU ranks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from zerokit.distributed import gpu_features
from zerokit.distributed.gpu_features import check_gpu_features
from zerokit.documents import dotted
from zerokit.errors import ConfigError

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_features, "count_gpus", lambda: 0)
    monkeypatch.setenv("LOCAL_SIZE", "2")  # DeepSpeed's launcher: the ranks of this node


@pytest.mark.parametrize(
    ("zero", "ranks", "refused"),
    [
        ({"stage": 3, "zero_quantized_weights": True}, 1, True),
        ({"stage": 3, "zero_quantized_nontrainable_weights": True}, 2, True),
        ({"stage": 2, "zero_quantized_weights": True}, 2, False),
        ({"stage": 3, "zero_quantized_gradients": True}, 1, False),
        ({"stage": 3, "zero_quantized_gradients": True}, 2, False),
        ({"stage": 3, "zero_quantized_gradients": True}, 4, True),
    ],
)
def test_quantization_is_refused_where_deepspeed_would_load_its_kernels(
    zero: dict[str, Any], ranks: int, refused: bool
) -> None:
    match = r"^zero_optimization.zero_quantized_\w+: is a CUDA kernel"
    with pytest.raises(ConfigError, match=match) if refused else nullcontext():
        check_gpu_features(zero, dotted, ranks=ranks)


@pytest.mark.parametrize("error", [ValueError, OSError("CUDA_HOME environment variable is not set"), RuntimeError])
def test_whatever_keeps_the_kernels_from_loading_they_are_not_there(
    error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepspeed.ops import op_builder

    def load(*_: object) -> None:
        raise error

    monkeypatch.setattr(op_builder.QuantizerBuilder, "load", load)
    with pytest.raises(ConfigError, match="is a CUDA kernel"):
        check_gpu_features({"stage": 3, "zero_quantized_weights": True}, dotted)
