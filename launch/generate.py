"""Generate under DeepSpeed ZeRO: ``deepspeed launch/generate.py --model MODEL ...``. See ``--help``."""

from zerokit.distributed.group import leave
from zerokit.generation.main import main

if __name__ == "__main__":
    leave(main())
