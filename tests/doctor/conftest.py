from tests.cli.conftest import zerokit

__all__ = ["zerokit"]
