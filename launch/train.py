"""Fine-tune with DeepSpeed ZeRO: ``deepspeed launch/train.py --recipe FILE.yaml``. See ``--help``."""

from zerokit.distributed.group import leave
from zerokit.training.main import main

if __name__ == "__main__":
    leave(main())
