"""Runs a public script where the Hub is not: ``python without_hub.py SCRIPT ARGS``, the script as it is.

Data sets with an hf:// address are read from ./train.parquet. Models of transformers 4, whose from_pretrained
the rehearsal does not know, are built from the config in their folder.
"""

from __future__ import annotations

import runpy
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def read_data_locally() -> None:
    """Let datasets.load_dataset find ./train.parquet for whatever is asked of the Hub by address."""
    import datasets

    load = datasets.load_dataset

    def load_locally(*names: Any, data_files: Any = None, **given: Any) -> Any:
        addresses = data_files.values() if isinstance(data_files, dict) else [data_files]
        if any(str(address).startswith("hf://") for address in addresses):
            parts = data_files if isinstance(data_files, dict) else {"train": data_files}
            return datasets.DatasetDict(load("parquet", data_files=dict.fromkeys(parts, "train.parquet")))
        return load(*names, data_files=data_files, **given)

    datasets.load_dataset = load_locally


def build_models_from_configs() -> None:
    """PreTrainedModel.from_pretrained of transformers 4, without a checkpoint."""
    import torch
    from transformers import AutoConfig, PreTrainedModel

    def from_pretrained(cls: Any, name: str, *_: Any, config: Any = None, **given: Any) -> Any:
        config = AutoConfig.from_pretrained(name) if config is None else config
        dtype = given.get("torch_dtype")
        chosen = {"torch_dtype": getattr(torch, dtype) if isinstance(dtype, str) else dtype} if dtype else {}
        return cls._from_config(config, **chosen).eval()

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    read_data_locally()
    if version("transformers").startswith("4."):
        build_models_from_configs()
    runpy.run_path(sys.argv[0], run_name="__main__")
