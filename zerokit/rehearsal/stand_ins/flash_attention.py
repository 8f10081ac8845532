"""FlashAttention 2, 3 and 4: the packages and versions that have a stand-in.

torch's own flash attention operator allocates results. Working memory of the backward follows the packages
(csrc/flash_attn/flash_api.cpp, hopper/flash_api.cpp, flash_attn/cute/interface.py). Shapes follow flash-
attn: q [batch, sequence, heads, head size], or [tokens, heads, head size] with cumulative lengths; softmax
statistics are float32. Names, parameters and results of flash-attn follow the release that `--has` names.
"""

from __future__ import annotations

from zerokit.rehearsal.stand_ins.packages import Package

FLASH_ATTN = Package(
    "flash-attn",
    "2.8.3",
    {
        "flash_attn": "stand_ins.flash_attention_2",
        "flash_attn.flash_attn_interface": "stand_ins.flash_attention_2",
        "flash_attn.bert_padding": "stand_ins.flash_attention_layers",
        "flash_attn.layers": "stand_ins.flash_attention_rotary",
        "flash_attn.layers.rotary": "stand_ins.flash_attention_rotary",
        "flash_attn.losses": "stand_ins.flash_attention_norms",
        "flash_attn.losses.cross_entropy": "stand_ins.flash_attention_norms",
        "flash_attn.modules": "stand_ins.flash_attention_2",
        "flash_attn.modules.mha": "stand_ins.flash_attention_2",
        "flash_attn.ops": "stand_ins.flash_attention_layers",
        "flash_attn.ops.triton": "stand_ins.flash_attention_layers",
        "flash_attn.ops.triton.cross_entropy": "stand_ins.flash_attention_layers",
        "flash_attn.ops.triton.layer_norm": "stand_ins.flash_attention_norms",
        "flash_attn.utils": "stand_ins.flash_attention_layers",
        "flash_attn.utils.distributed": "stand_ins.flash_attention_layers",
    },
    oldest="2.0.0",
    is_always_found=True,
    hidden_from=frozenset({"xformers"}),
)
PACKAGES = (
    FLASH_ATTN,
    Package(
        "flash-attn-3", "3.0.0", {"flash_attn_interface": "stand_ins.flash_attention_3"}, is_always_found=True
    ),
    Package(
        "flash-attn-4",
        "4.0.0b36",
        {
            "flash_attn.cute": "stand_ins.flash_attention_4",
            "flash_attn.cute.interface": "stand_ins.flash_attention_4",
        },
        is_always_found=True,
    ),
)
