"""Fine-tune with DeepSpeed ZeRO: ``deepspeed launch/train.py --recipe FILE.yaml``. See ``--help``."""

from zerokit.cli.main import main

if __name__ == "__main__":
    main("train")
