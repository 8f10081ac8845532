"""Model shapes: dimensions and exact parameter counts from a config.json, without torch."""

from zerokit.models.load import load_model_shape
from zerokit.models.parts import Experts
from zerokit.models.shape import ModelShape
from zerokit.models.tensors import KINDS, Kind, Tensor

__all__ = ["KINDS", "Experts", "Kind", "ModelShape", "Tensor", "load_model_shape"]
