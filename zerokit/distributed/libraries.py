"""How zerokit sets up the libraries below it: on which device, and how much they say."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

from zerokit.distributed.extensions import choose_extensions_folder
from zerokit.distributed.group import count_gpus
from zerokit.distributed.ranks import Ranks


def set_up_libraries(ranks: Ranks) -> None:
    """Choose the device, and let the libraries say only what a person should act on, once per run.

    To be called on every rank before deepspeed is imported.
    """
    release_shared_memory(ranks)
    choose_extensions_folder()
    if count_gpus() == 0:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        # `accelerate launch --cpu` sets it, upon which accelerate wraps the model in DDP, not DeepSpeed.
        os.environ.pop("ACCELERATE_USE_CPU", None)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # before the data loader forks
    # torch renames its collectives; that is for DeepSpeed's authors to act on.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    if not ranks.is_main:
        warnings.simplefilter("ignore")

    import datasets
    import deepspeed  # noqa: F401  # makes its logger, and decides on its device
    import transformers

    level = logging.WARNING if ranks.is_main else logging.ERROR
    logging.getLogger("DeepSpeed").setLevel(level)
    transformers.logging.set_verbosity(level)
    transformers.logging.disable_progress_bar()
    datasets.logging.set_verbosity(logging.CRITICAL)  # it logs errors that it raises as well
    datasets.disable_progress_bars()


def release_shared_memory(ranks: Ranks) -> None:
    """Remove the name of this rank's shared memory, through which DeepSpeed's CPU ranks reduce.

    DeepSpeed (csrc/cpu/comm/shm.cpp) never does. Each run would leave 66 MiB per rank in /dev/shm, and
    the next one on the same port could meet the states that the last one left. To be called before the
    process group of DeepSpeed opens, and again when all ranks have it open: the memory itself lives on
    until they end.
    """
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{ranks.rank}"
    Path("/dev/shm", name).unlink(missing_ok=True)  # noqa: S108
