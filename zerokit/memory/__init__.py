"""The memory of training in closed form: model states, buffers and activations by phase."""

from zerokit.memory.adapters import Ia3, LearnedTokens, Lora
from zerokit.memory.estimate import Estimate, HostMemory, Memory, NvmeMemory, estimate
from zerokit.memory.model_states import ModelStates, model_states
from zerokit.memory.term import Certainty, Device, Term, TermKind, total_bytes
from zerokit.memory.training_run import Generation, TrainingRun
