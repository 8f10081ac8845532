"""NVIDIA Apex: fused norms, optimizers and weight gradients.

Owner: the maintainers of zerokit.
"""

from __future__ import annotations

from zerokit.rehearsal.stand_ins.packages import Package

PACKAGES = (
    Package(
        "apex",
        "0.1",
        {
            "apex": "",
            "apex.multi_tensor_apply": "contrib.apex.amp_c",
            "apex.normalization": "contrib.apex.normalization",
            "apex.normalization.fused_layer_norm": "contrib.apex.normalization",
            "apex.optimizers": "contrib.apex.optimizers",
            "amp_C": "contrib.apex.amp_c",
            "fused_layer_norm_cuda": "contrib.apex.fused_layer_norm_cuda",
            "fused_weight_gradient_mlp_cuda": "contrib.apex.fused_weight_gradient_mlp_cuda",
        },
    ),
)
