"""``zerokit evaluate`` as a module, for ``deepspeed --module`` and ``python -m``."""

from zerokit.cli.main import main

if __name__ == "__main__":
    main("evaluate")
