"""Rows written as files of every format."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from typing import Any

Rows = list[dict[str, Any]]


def jsonl(rows: Rows) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def unescaped_jsonl(rows: Rows) -> bytes:
    return b"\xef\xbb\xbf" + "\r\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


def json_list(rows: Rows) -> bytes:
    return json.dumps(rows, indent=1).encode()


def table(rows: Rows, separator: str = ",", **dialect: Any) -> bytes:
    content = io.StringIO()
    writer = csv.DictWriter(content, list(rows[0]), delimiter=separator, quoting=csv.QUOTE_ALL, **dialect)
    writer.writeheader()
    writer.writerows(rows)
    return content.getvalue().encode()


def tsv(rows: Rows) -> bytes:
    return table(rows, "\t", lineterminator="\n")


def parquet(rows: Rows) -> bytes:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    content = io.BytesIO()
    write_table(pa.Table.from_pylist(rows), content, row_group_size=2)
    return content.getvalue()


def arrow(rows: Rows) -> bytes:
    import pyarrow as pa

    content = io.BytesIO()
    written = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(content, written.schema) as writer:
        writer.write_table(written)
    return content.getvalue()


OF_TEXTS: dict[str, Callable[[Rows], bytes]] = {
    "a.jsonl": jsonl,
    "b.jsonl": unescaped_jsonl,
    "a.jsonl.gz": lambda rows: gzip.compress(jsonl(rows)),
    "a.json": json_list,
    "a.csv": table,
    "a.tsv": tsv,
    "a.parquet": parquet,
    "a.arrow": arrow,
}
"""What writes rows of texts, by the name of the file."""
