"""Keeps checkpoints from running code while they are loaded.

DeepSpeed loads its pickles without restriction (``weights_only=False``). torch can restrict every
``torch.load`` of a process to tensors, plain data and named classes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zerokit.checkpoint.torch_file import check_pickles_of
from zerokit.documents.pickle_limits import PickleLimitError
from zerokit.errors import CheckpointError

_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""torch.load reads it and ignores its caller's weights_only."""
_ENDINGS = (".pt", ".pth")


@contextmanager
def known_classes_only() -> Iterator[None]:
    """Within the block torch loads only tensors, plain data, and what DeepSpeed and the Trainer save.

    The classes are those that DeepSpeed writes (``state_dict`` in `runtime/zero/stage_1_and_2.py` and
    `stage3.py`) and those of numpy's random state (``_save_rng_state`` of the Trainer).
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address
    from torch.serialization import safe_globals
    from transformers.trainer_pt_utils import safe_globals as of_numpy

    def stage(enum: Any, name: str) -> Any:
        """A member, as early releases of Python 3.11 pickle it."""
        if enum is not ZeroStageEnum or name not in enum.__members__:
            raise ValueError("its pickle would look up an attribute")
        return enum[name]

    known = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address, (stage, "builtins.getattr")]
    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        with of_numpy(), safe_globals(known):
            yield
    finally:
        if before is None:
            del os.environ[_FORCE]
        else:
            os.environ[_FORCE] = before


def check_pickles(folder: Path, names: list[str]) -> None:
    """Load the pickles of a checkpoint without their tensors.

    Raises:
        CheckpointError: a pickle names a function or class that DeepSpeed's checkpoints do not need, or
            cannot be loaded.
    """
    import torch

    for file in (folder / name for name in names if name.endswith(_ENDINGS)):
        try:
            check_pickles_of(file)
            with known_classes_only():
                torch.load(file, map_location="cpu", weights_only=True, mmap=_is_zip(file))
        except PickleLimitError as error:
            raise CheckpointError(str(error), where=file, hint="Resume from another checkpoint") from None
        except Exception as error:
            # Errors of pickle, of torch's reader, and any other error of a damaged pickle.
            unknown = re.search(r"GLOBAL ([\w.]+)", str(error))
            if unknown is None:
                raise CheckpointError(
                    f"is damaged or cut short ({next(iter(str(error).splitlines()), type(error).__name__)})",
                    where=file,
                    hint="Resume from another checkpoint",
                ) from None
            raise CheckpointError(
                f"its pickle would load '{unknown[1]}', which may run code and is not in DeepSpeed's checkpoints",
                where=file,
                hint="Add --trust-checkpoint if you made it yourself",
            ) from None


def _is_zip(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"PK\x03\x04"
