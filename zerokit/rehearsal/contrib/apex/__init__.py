"""NVIDIA Apex, as far as Megatron-DeepSpeed and transformers call it: fused norms and Adam.

Owner: the maintainers of zerokit.
"""
