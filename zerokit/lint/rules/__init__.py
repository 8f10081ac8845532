"""All rules: a table for each topic, and files with the functions of those that are no simple conditions.

Importing this package registers them.
"""

from importlib import import_module
from pathlib import Path

from zerokit.lint.table import register_table

_FOLDER = Path(__file__).parent

for _file in sorted(_FOLDER.glob("[a-z]*.py")):
    import_module(f"zerokit.lint.rules.{_file.stem}")
register_table(_FOLDER)
