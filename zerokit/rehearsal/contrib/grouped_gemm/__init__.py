"""nv-grouped-gemm: matmuls of a mixture's experts, and the order of their tokens.

Owner: the maintainers of zerokit.
"""

from __future__ import annotations

from zerokit.rehearsal.stand_ins.packages import Package

PACKAGES = (
    Package(
        "nv-grouped-gemm",
        "1.1.4.post8",
        {
            "grouped_gemm": "",
            "grouped_gemm.ops": "contrib.grouped_gemm.ops",
            "grouped_gemm.backend": "contrib.grouped_gemm.backend",
        },
        alias="grouped-gemm",
    ),
)
