"""``zerokit prices``: the prices that ``zerokit plan`` uses, and newer ones."""

from __future__ import annotations

from zerokit import choices
from zerokit.cli.command import Command, command_group, described
from zerokit.cli.output import print_json
from zerokit.errors import ZerokitError
from zerokit.units import quantity

app = command_group("prices", "Show the prices of GPUs that zerokit plan uses, and fetch newer ones.")


@app.command(cls=Command)
@described("prices show")
def show(card: str | None = None, spot: bool = False, output_format: choices.OutputFormat = "text") -> None:
    """Print the price of each card that zerokit plan would use, with date and source.

    It is the price of the last zerokit prices update, else the one in zerokit.
    """
    from zerokit.hardware.gpus import matching_gpus
    from zerokit.planning.prices import load_prices
    from zerokit.reporting.terminal import show_rows

    known = load_prices(spot=spot)
    found = [known[gpu.name].used for gpu in matching_gpus(card or "") if gpu.name in known]
    if not found:
        raise ZerokitError(f"no price of {card} is known", where="CARD", hint="See zerokit gpus")
    if output_format == "json":
        print_json({"prices": [one.model_dump() for one in found]})
        return
    titles = ("GPU", "USD per GPU-hour", "lowest to highest", "date", "source")
    show_rows([one.row for one in found], titles)


@app.command(cls=Command)
def update() -> None:
    """Fetch today's prices of nine providers with gpuhunt, and keep them for zerokit plan.

    Needs zerokit[prices] and a network. No other command fetches anything. Delete the file that is named to
    return to the prices that zerokit brings.
    """
    from zerokit.extras import require
    from zerokit.planning.prices import update as fetch
    from zerokit.reporting.terminal import show as print_parts

    require("prices", where="zerokit prices update")
    file, machines = fetch()
    cards = quantity(len({machine.gpu.name for machine in machines}), "card")
    providers = sorted({machine.provider for machine in machines})
    print_parts([f"Wrote {file}: {quantity(len(machines), 'price')} of {cards} from {', '.join(providers)}"])
