"""flash-attn (2.x) and flash-attn-3: what their stand-ins are like (`compiled_packages` finds them).

Results are allocated by torch's own flash attention operator, working memory of the backward as the packages'
C++ code does (csrc/flash_attn/flash_api.cpp, hopper/flash_api.cpp). Shapes follow flash-attn:
q [batch, sequence, heads, head size], or [tokens, heads, head size] with cumulative lengths; softmax
statistics are float32. Names, parameters and results are those of the release of flash-attn that the
script's project asks for (`flash_attention_release`).
"""

from __future__ import annotations

from zerokit.rehearsal.stand_ins.flash_attention_release import NEWEST, Chosen, Release

VERSION_3 = "3.0.0"

_chosen: Chosen | None = None
"""The release of flash-attn, where it is stood in for."""


def install() -> None:
    """Have the release be chosen for the script that is started in the working directory."""
    global _chosen
    _chosen = Chosen()


def release() -> Release:
    """The release of flash-attn that is stood in for."""
    return _chosen.release if _chosen is not None else Release(NEWEST)
