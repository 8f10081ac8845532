"""Sets up the libraries below zerokit: device and log levels."""

from __future__ import annotations

import atexit
import logging
import os
import warnings

from zerokit.choices import SAFE_PATH
from zerokit.distributed.extensions import choose_extensions_folder
from zerokit.distributed.group import count_gpus
from zerokit.distributed.ranks import Ranks
from zerokit.distributed.shared_memory import release_shared_memory
from zerokit.errors import visible_lines
from zerokit.garbage import paused_collection


def set_up_libraries(ranks: Ranks) -> None:
    """Choose the device and silence libraries. Call on every rank before importing deepspeed."""
    release_shared_memory(ranks)
    atexit.register(release_shared_memory, ranks, of_all=True)  # where the engine fails early
    choose_extensions_folder()
    if count_gpus() == 0:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        # `accelerate launch --cpu` sets it, upon which accelerate wraps the model in DDP, not DeepSpeed.
        os.environ.pop("ACCELERATE_USE_CPU", None)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # before the data loader forks
    os.environ[SAFE_PATH] = "1"  # for processes that libraries start, such as multiprocessing's
    # torch renames its collectives; that is for DeepSpeed's authors to act on.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # And transformers its checkpointing: for peft's.
    warnings.filterwarnings("ignore", r"`is_gradient_checkpointing` is deprecated", FutureWarning)
    if not ranks.is_main:
        warnings.simplefilter("ignore")

    suppress_false_alarms()
    # Where it is imported, it warns of kernels for 4-bit models on the CPU.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

    with paused_collection():
        import datasets
        import deepspeed  # noqa: F401  # makes its logger, and decides on its device
        import transformers
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    escape_logs()
    unset_hf_deepspeed_config()  # of an earlier run in this process, which would divide models as they are made
    level = logging.WARNING if ranks.is_main else logging.ERROR
    logging.getLogger("DeepSpeed").setLevel(level)
    transformers.logging.set_verbosity(level)
    transformers.logging.disable_progress_bar()
    datasets.logging.set_verbosity(logging.CRITICAL)  # it logs errors that it raises as well
    datasets.disable_progress_bars()


def escape_logs() -> None:
    """Escape control characters in what libraries log of tensor and file names."""

    def escape(record: logging.LogRecord) -> bool:
        record.msg, record.args = visible_lines(record.getMessage()), ()
        return True

    loggers = [logging.getLogger(name) for name in ("transformers", "DeepSpeed", "accelerate")]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    for handler in (*handlers, logging.lastResort):
        if handler is not None:
            handler.addFilter(escape)


_FALSE_ALARMS = {
    # Of the Trainer's own making: it tells accelerate 1, and the ds_config what the recipe says.
    "accelerate.accelerator": "Gradient accumulation steps mismatch",
    # What matters of it `zerokit.training.resume` compares; a share of steps is no longer one in the state.
    "transformers.trainer_utils": "do not match the ones in the `trainer_state.json`",
}
"""Logger -> text of a warning that needs no action."""


def suppress_false_alarms() -> None:
    """Suppress warnings that need no action."""

    def is_true(record: logging.LogRecord) -> bool:
        return _FALSE_ALARMS[record.name] not in record.getMessage()

    for name in _FALSE_ALARMS:
        logging.getLogger(name).addFilter(is_true)
