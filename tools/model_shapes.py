"""Write zerokit/models/shapes.json: the shapes of catalogue models whose families have no code.

    python -m tools.model_shapes

It builds each such model of `catalogue.json` on torch's meta device and writes one line per model: sizes, and
every parameter with its kind. Run it after a change of `catalogue.json` or `on_meta.py`, or for a new release
of transformers. `tests/models/test_catalogue.py` compares every model with transformers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields

from zerokit.models import ModelShape, architectures, catalogue
from zerokit.models.on_meta import count_on_meta

_FROM_CATALOGUE = {"name", "model_type", "config", "counted_by"}
"""Fields of a shape that the catalogue or the code gives."""


def shapes() -> dict[str, ModelShape]:
    """Build the models of all families without code, by Hub id; imports torch and transformers."""
    return {
        entry.id: count_on_meta(entry.config, lambda path: ".".join(path), name=entry.id)
        for entry in catalogue.entries()
        if entry.config["model_type"] not in architectures.model_types()
    }


def as_json(shape: ModelShape) -> dict[str, object]:
    """Return the fields of a shape that differ from the defaults; a tensor is [name, kind, count, *shape]."""
    values: dict[str, object] = {
        field.name: value
        for field in fields(shape)
        if field.name not in _FROM_CATALOGUE and (value := getattr(shape, field.name)) != field.default
    }
    if shape.experts is not None:
        values["experts"] = asdict(shape.experts)
    return values | {"tensors": [[tensor.name, tensor.kind, tensor.count, *tensor.shape] for tensor in shape.tensors]}


def main() -> None:
    """Write the file."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(as_json(shape), separators=(',', ':'))}" for name, shape in shapes().items()
    ]
    catalogue.SHAPES_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{catalogue.SHAPES_FILE}: {len(lines)} models")


if __name__ == "__main__":
    main()
