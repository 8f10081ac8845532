"""What training holds in memory, in closed form: model states, buffers, activations, and when."""

from zerokit.memory.estimate import Estimate, HostMemory, Memory, NvmeMemory, estimate
from zerokit.memory.model_states import ModelStates, model_states
from zerokit.memory.term import Certainty, Device, Term, TermKind, by_category, total_bytes
from zerokit.memory.training_run import Generation, LearnedTokens, Lora, TrainingRun

__all__ = [
    "Certainty",
    "Device",
    "Estimate",
    "Generation",
    "HostMemory",
    "LearnedTokens",
    "Lora",
    "Memory",
    "ModelStates",
    "NvmeMemory",
    "Term",
    "TermKind",
    "TrainingRun",
    "by_category",
    "estimate",
    "model_states",
    "total_bytes",
]
