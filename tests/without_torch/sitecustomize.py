"""With this folder in ``PYTHONPATH``, Python finds no package that only training and rehearsing need.

So tests, and the processes that they start, run where everything is installed as they would where it is not.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

HEAVY = frozenset(
    [
        *("accelerate", "datasets", "deepspeed", "hjson", "huggingface_hub", "jinja2", "matplotlib", "numpy"),
        *(
            "pandas",
            "peft",
            "psutil",
            "pyarrow",
            "safetensors",
            "tokenizers",
            "torch",
            "tqdm",
            "transformers",
        ),
    ]
)


class _FindsNothingHeavy(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname in HEAVY:
            return None
        return super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = _FindsNothingHeavy
