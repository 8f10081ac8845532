"""The seconds of an optimizer step by formulas, with the costs that ``zerokit rehearse --time`` uses.

Importing this package imports neither torch nor transformers nor DeepSpeed.
"""

from zerokit.step_time.layers import Layers
from zerokit.step_time.step import StepTime, layers_of, least_update_seconds, step_time

__all__ = ["Layers", "StepTime", "layers_of", "least_update_seconds", "step_time"]
