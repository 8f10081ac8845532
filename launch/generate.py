"""Generate under DeepSpeed ZeRO: ``deepspeed launch/generate.py --model MODEL ...``. See ``--help``."""

from zerokit.cli.main import main

if __name__ == "__main__":
    main("generate")
