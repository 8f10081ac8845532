"""nv-grouped-gemm, matmuls of a mixture's experts: imported by scripts that may not call it; refused when called.

Owner: the maintainers of zerokit.
"""
