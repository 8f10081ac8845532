"""What is wrong with a command line of ``zerokit generate`` and its files, before any is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerokit.checkpoint.source import check_before_launch
from zerokit.config import load_ds_config
from zerokit.data.files import given_files
from zerokit.errors import ZerokitError, noted, raise_together
from zerokit.generation.options import Options
from zerokit.generation.output import check_output
from zerokit.generation.sampling import Sampling, parse_sampling

if TYPE_CHECKING:
    from zerokit.distributed.ranks import Ranks


def first_look(options: Options, ranks: Ranks) -> Sampling:
    """What the options say of sampling, where the files that others name are there.

    Args:
        options: the same on every rank.
        ranks: this rank's place. One rank of all looks at the output, and one of each node at what is read.

    Raises:
        ZerokitError: they are not, or not valid; all of it together.
    """
    errors: list[ZerokitError] = []
    given = None
    with noted(errors):
        given = parse_sampling(options.sampling_words)
    _look_at_files(options, errors, output=ranks.is_main, inputs=ranks.is_node_main)
    raise_together(errors)
    assert given is not None
    return given


def look_before_launch(options: Options) -> None:
    """As :func:`first_look`, in the process that starts the ranks.

    What sampling is known takes transformers to say, for which only those wait who are told something anyway.

    Raises:
        ZerokitError: as there.
    """
    errors: list[ZerokitError] = []
    _look_at_files(options, errors, output=True, inputs=True)
    if errors:
        of_sampling: list[ZerokitError] = []
        with noted(of_sampling):
            parse_sampling(options.sampling_words)
        raise_together(of_sampling + errors)


def _look_at_files(options: Options, errors: list[ZerokitError], *, output: bool, inputs: bool) -> None:
    """Add to `errors` what is wrong with the file that is to be written, and those that are to be read."""
    if output:
        with noted(errors):
            check_output(options.output, force=options.force)
    if inputs:
        with noted(errors):
            check_before_launch(options.model, where="--model", revision=options.revision)
        with noted(errors):
            given_files(options.prompts or (), "--prompts", options.split)
        if options.ds_config is not None:
            with noted(errors):
                load_ds_config(options.ds_config)
