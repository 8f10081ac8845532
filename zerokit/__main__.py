"""``python -m zerokit``: the command ``zerokit``."""

from zerokit.cli.main import main

if __name__ == "__main__":
    main()
