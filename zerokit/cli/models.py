"""``zerokit models``: the models that zerokit knows without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerokit import choices
from zerokit.cli.command import described
from zerokit.cli.output import print_json
from zerokit.errors import ModelError

if TYPE_CHECKING:
    from zerokit.models import ModelShape
    from zerokit.models.catalogue import Entry


@described("models")
def models(name: str | None = None, output_format: choices.OutputFormat = "text") -> None:
    """List the models that zerokit knows by name, offline, with their exact numbers of parameters."""
    from zerokit.models import load_model_shape
    from zerokit.models.catalogue import entries

    wanted = (name or "").lower()
    found = [
        (entry, load_model_shape(entry.id, allow_network=False, allow_torch=False))
        for entry in entries()
        if any(wanted in one.lower() for one in (entry.id, *entry.also, *entry.short_names))
    ]
    if not found:
        raise ModelError(f"no model has '{name}' in its name", where="NAME", hint="Leave it out for all of them")
    if output_format == "json":
        print_json({"models": [_as_data(entry, shape) for entry, shape in found]})
    else:
        _print_lines(found)


def _as_data(entry: Entry, shape: ModelShape) -> dict[str, Any]:
    return {
        "id": entry.id,
        "also": list(entry.also),
        "names": list(entry.short_names),
        "model_type": shape.model_type,
        "num_parameters": shape.num_parameters,
        "num_active_parameters": shape.num_active_parameters,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
    }


def _print_lines(found: list[tuple[Entry, ModelShape]]) -> None:
    from zerokit.reporting.terminal import show_rows

    rows: list[tuple[str, ...]] = []
    for entry, shape in found:
        sizes = (shape.num_parameters, shape.num_hidden_layers, shape.hidden_size, shape.max_position_embeddings)
        rows.append((entry.short_names[0], shape.model_type, *map(_size, sizes), entry.id))
    show_rows(rows, ("name", "type", "parameters", "layers", "hidden", "longest", "Hub id"))


def _size(size: int | None) -> str:
    return "-" if size is None else f"{size:,}"
