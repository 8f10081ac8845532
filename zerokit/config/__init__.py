"""ds_config.json as models: load, check and dump.

Importing this package is light: pydantic, but neither torch nor transformers nor deepspeed.
"""

from zerokit.config.base import Auto, Section
from zerokit.config.load import ValidPart, check_ds_config, load_ds_config, load_valid_part, read_ds_config
from zerokit.config.optimizer import Optimizer
from zerokit.config.scheduler import Scheduler
from zerokit.config.sections import DeepSpeedConfig, ZeroOptimization
