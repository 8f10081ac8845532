"""Extensions of flash-attn's csrc that are built one by one: rotary embeddings, norms with dropout, losses.

Owner: the maintainers of zerokit.
"""

from __future__ import annotations

from zerokit.rehearsal.stand_ins.packages import Package

PACKAGES = tuple(
    Package(name.replace("_", "-"), "0.1", {name: "contrib.flash_attention_csrc.kernels"})
    for name in ("rotary_emb", "dropout_layer_norm", "xentropy_cuda_lib")
)
