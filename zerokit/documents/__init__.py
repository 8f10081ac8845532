"""Reads JSON and YAML with the line and column of every key and value.

Duplicate keys are errors: DeepSpeed rejects them too, but transformers and accelerate silently keep the last
one.
"""

# Unlike the methods of Path these return False for a name that no file system accepts.
from os.path import exists as path_exists
from os.path import isdir as is_folder
from os.path import isfile as is_file

from zerokit.documents.document import Departure, Document, Span, replace_nonfinite, shortened
from zerokit.documents.json_reader import parse_json
from zerokit.documents.paths import (
    ABSENT,
    Key,
    KeyPath,
    dotted,
    has_value,
    leaves,
    split_dotted,
    value_at,
    with_value,
    without,
)
from zerokit.documents.reading import (
    MAX_BYTES,
    MAX_TABLE_BYTES,
    parse_document,
    read_bytes,
    read_document,
    starts_as_json,
)
from zerokit.documents.regular_files import COPY_HINT, check_regular, file_system, first_unreadable, unreadable_reason
from zerokit.documents.yaml_reader import parse_scalar, parse_yaml
