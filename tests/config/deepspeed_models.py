"""DeepSpeed's own pydantic models, by the section that each parses."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

deepspeed = pytest.importorskip("deepspeed")

from deepspeed.comm.config import CommsLoggerConfig  # noqa: E402
from deepspeed.compile.config import CompileConfig  # noqa: E402
from deepspeed.inference.config import WeightQuantConfig  # noqa: E402
from deepspeed.monitor import config as monitor  # noqa: E402
from deepspeed.runtime import config as ds_config  # noqa: E402
from deepspeed.runtime import precision_config  # noqa: E402
from deepspeed.runtime.tensor_parallel import config as tensor_parallel  # noqa: E402
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig  # noqa: E402
from deepspeed.runtime.zero import config as zero_config  # noqa: E402
from deepspeed.runtime.zero import leaf_module_config, offload_config  # noqa: E402
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig  # noqa: E402

SOURCE = Path(deepspeed.__file__).parent
ZERO = ("zero_optimization",)

MODELS: dict[tuple[str, ...], type[BaseModel]] = {
    ZERO: zero_config.DeepSpeedZeroConfig,
    (*ZERO, "offload_param"): offload_config.DeepSpeedZeroOffloadParamConfig,
    (*ZERO, "offload_optimizer"): offload_config.DeepSpeedZeroOffloadOptimizerConfig,
    (*ZERO, "leaf_module"): leaf_module_config.DeepSpeedZeroLeafModuleConfig,
    (*ZERO, "zenflow"): ZenFlowConfig,
    ("fp16",): precision_config.DeepSpeedFP16Config,
    ("bf16",): precision_config.DeepSpeedBF16Config,
    ("comms_logger",): CommsLoggerConfig,
    ("compile",): CompileConfig,
    ("hybrid_engine",): ds_config.HybridEngineConfig,
    ("tensor_parallel",): tensor_parallel.TPTrainingConfig,
    ("tensor_parallel", "tp"): tensor_parallel.TPConfig,
    ("weight_quantization",): WeightQuantConfig,
    ("tensorboard",): monitor.TensorBoardConfig,
    ("wandb",): monitor.WandbConfig,
    ("csv_monitor",): monitor.CSVConfig,
    ("comet",): monitor.CometConfig,
    ("timers", "throughput"): DeepSpeedThroughputTimerConfig,
}
"""Section -> the pydantic model with which DeepSpeed parses it."""
