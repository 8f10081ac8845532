"""ds_config.json as models: load, check, build and dump.

Importing this package is light: pydantic, but neither torch nor transformers nor deepspeed.
"""

from zerokit.config.activation_checkpointing import ActivationCheckpointing
from zerokit.config.aio import Aio
from zerokit.config.auto import FILLED_BY, TARGETS, Target
from zerokit.config.base import Auto, Section
from zerokit.config.build import OffloadDevice, Precision, build_ds_config
from zerokit.config.data_types import DataTypes
from zerokit.config.leaf_module import LeafModule
from zerokit.config.load import ValidPart, check_ds_config, load_ds_config, load_valid_part
from zerokit.config.offload import OffloadOptimizer, OffloadParam
from zerokit.config.optimizer import Optimizer
from zerokit.config.precision import BF16, FP16, TorchAutocast
from zerokit.config.root import DeepSpeedConfig
from zerokit.config.scheduler import Scheduler
from zerokit.config.zenflow import ZenFlow
from zerokit.config.zero import ZeroOptimization

__all__ = [
    "BF16",
    "FILLED_BY",
    "FP16",
    "TARGETS",
    "ActivationCheckpointing",
    "Aio",
    "Auto",
    "DataTypes",
    "DeepSpeedConfig",
    "LeafModule",
    "OffloadDevice",
    "OffloadOptimizer",
    "OffloadParam",
    "Optimizer",
    "Precision",
    "Scheduler",
    "Section",
    "Target",
    "TorchAutocast",
    "ValidPart",
    "ZenFlow",
    "ZeroOptimization",
    "build_ds_config",
    "check_ds_config",
    "load_ds_config",
    "load_valid_part",
]
