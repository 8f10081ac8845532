"""ds_config.json as models: load, check and dump.

Importing this package is light: pydantic, but neither torch nor transformers nor deepspeed.
"""

from zerokit.config.aio import Aio
from zerokit.config.base import Auto, Section
from zerokit.config.leaf_module import LeafModule
from zerokit.config.load import ValidPart, check_ds_config, load_ds_config, load_valid_part, read_ds_config
from zerokit.config.offload import OffloadOptimizer, OffloadParam
from zerokit.config.optimizer import Optimizer
from zerokit.config.precision import BF16, FP16, DataTypes, TorchAutocast
from zerokit.config.root import DeepSpeedConfig
from zerokit.config.scheduler import Scheduler
from zerokit.config.zero import ZeroOptimization

__all__ = [
    "BF16",
    "FP16",
    "Aio",
    "Auto",
    "DataTypes",
    "DeepSpeedConfig",
    "LeafModule",
    "OffloadOptimizer",
    "OffloadParam",
    "Optimizer",
    "Scheduler",
    "Section",
    "TorchAutocast",
    "ValidPart",
    "ZeroOptimization",
    "check_ds_config",
    "load_ds_config",
    "load_valid_part",
    "read_ds_config",
]
