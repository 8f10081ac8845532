"""Model shapes: dimensions and exact parameter counts from a config.json, without torch."""

from zerokit.models.load import load_model_shape
from zerokit.models.shape import Experts, ModelShape
from zerokit.models.tensors import KINDS, Kind, Tensor
