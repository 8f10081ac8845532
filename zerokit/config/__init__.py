"""ds_config.json as models: load, check, build and dump.

Importing this package is light: pydantic, but neither torch nor transformers nor deepspeed.
"""

from zerokit.config.activation_checkpointing import ActivationCheckpointing
from zerokit.config.aio import Aio
from zerokit.config.auto import FILLED_BY, TARGETS, Target
from zerokit.config.base import Auto, Section
from zerokit.config.build import OffloadDevice, Precision, build_ds_config
from zerokit.config.check import check_document, cross_check
from zerokit.config.load import check_ds_config, load_ds_config
from zerokit.config.offload import OffloadOptimizer, OffloadParam
from zerokit.config.optimizer import Optimizer, Scheduler
from zerokit.config.precision import BF16, FP16, DataTypes, TorchAutocast
from zerokit.config.problem import Problem, Severity
from zerokit.config.root import DeepSpeedConfig
from zerokit.config.zenflow import ZenFlow
from zerokit.config.zero import LeafModule, ZeroOptimization

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
    "Problem",
    "Scheduler",
    "Section",
    "Severity",
    "Target",
    "TorchAutocast",
    "ZenFlow",
    "ZeroOptimization",
    "build_ds_config",
    "check_document",
    "check_ds_config",
    "cross_check",
    "load_ds_config",
]
