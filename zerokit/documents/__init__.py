"""The one reader of JSON and YAML.

Both formats give plain Python data plus the line and column of every key and value, and both reject
duplicate keys: DeepSpeed rejects them too, while transformers and accelerate keep the last one in
silence, so that one file would mean two things.
"""

from zerokit.documents.document import Departure, Document, Span, finite
from zerokit.documents.json_reader import parse_json
from zerokit.documents.paths import (
    ABSENT,
    Key,
    KeyPath,
    dotted,
    from_dotted,
    has_value,
    leaves,
    value_at,
    with_value,
    without,
)
from zerokit.documents.reading import (
    MAX_BYTES,
    MAX_TABLE_BYTES,
    copy_pipe,
    is_file,
    is_folder,
    is_pipe,
    is_there,
    opens_json,
    parse_document,
    read_bytes,
    read_document,
    shown,
)
from zerokit.documents.regular_files import (
    COPY,
    check_regular,
    file_system,
    first_unreadable,
    unreadable_reason,
)
from zerokit.documents.yaml_reader import parse_scalar, parse_yaml

__all__ = [
    "ABSENT",
    "COPY",
    "MAX_BYTES",
    "MAX_TABLE_BYTES",
    "Departure",
    "Document",
    "Key",
    "KeyPath",
    "Span",
    "check_regular",
    "copy_pipe",
    "dotted",
    "file_system",
    "finite",
    "first_unreadable",
    "from_dotted",
    "has_value",
    "is_file",
    "is_folder",
    "is_pipe",
    "is_there",
    "leaves",
    "opens_json",
    "parse_document",
    "parse_json",
    "parse_scalar",
    "parse_yaml",
    "read_bytes",
    "read_document",
    "shown",
    "unreadable_reason",
    "value_at",
    "with_value",
    "without",
]
