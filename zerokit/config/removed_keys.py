"""Keys that DeepSpeed 0.19.8 refuses by their mere presence, and what to do about each.

The keys are those of `_reject_removed_config_keys` in `deepspeed/runtime/config.py`; a test compares them.
"""

from __future__ import annotations

from zerokit.documents import KeyPath

REMOVED_KEYS: dict[KeyPath, tuple[str, str]] = {
    ("amp",): ("Apex mixed precision", "Use the section 'bf16', 'fp16' or 'torch_autocast'"),
    ("nebula",): ("Nebula checkpointing", "Remove the key; checkpoints are then written by torch.save"),
    ("compression_training",): (
        "the compression library",
        "Remove the key, or quantise with another library",
    ),
    ("quantize_training",): ("mixture of quantisation (MoQ)", "Remove the key"),
    ("eigenvalue",): ("mixture of quantisation (MoQ), of which this was a part,", "Remove the key"),
    ("sparse_gradients",): (
        "sparse reduction of dense embeddings' gradients",
        "Remove the key; build the embedding with sparse=True to have its gradients reduced sparsely",
    ),
    ("sparse_attention",): ("sparse attention", "Remove the key; choose the attention in the model"),
    ("elasticity",): ("elastic training", "Remove the key and set the batch sizes yourself"),
    ("graph_harvesting",): ("graph harvesting", "Remove the key"),
    ("curriculum_learning",): (
        "curriculum learning at the top of the file",
        "Move it to 'data_efficiency.data_sampling.curriculum_learning'",
    ),
    ("progressive_layer_drop",): ("progressive layer dropping", "Remove the key"),
    ("zero_optimization", "mics_shard_size"): (
        "MiCS",
        "Remove the key; 'zero_hpz_partition_size' keeps a copy of the parameters on each node",
    ),
    ("zero_optimization", "mics_hierarchical_params_gather"): ("MiCS", "Remove the key"),
    ("zero_optimization", "zeropp_loco_param"): (
        "LoCo for ZeRO++",
        "Remove the key; 'zero_quantized_gradients' works without it",
    ),
}
"""Key -> (the feature that is gone, what to do)."""
