"""zerokit: plan, check and run DeepSpeed ZeRO training.

Importing this package is cheap: torch, transformers and deepspeed are imported only by the
subpackages that need them (``training``, ``generation``, ``checkpoint``, ``distributed``).
"""

__version__ = "0.1.0"
