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
    if ranks.is_main:
        errors += _wrong_with_output(options)
    if ranks.is_node_main:
        errors += _wrong_with_input(options)
    raise_together(errors)
    assert given is not None
    return given


def look_before_launch(options: Options) -> None:
    """As :func:`first_look`, in the process that starts the ranks.

    What sampling is known takes transformers to say, for which only those wait who are told something anyway.

    Raises:
        ZerokitError: as there.
    """
    errors = [*_wrong_with_output(options), *_wrong_with_input(options)]
    if errors:
        of_sampling: list[ZerokitError] = []
        with noted(of_sampling):
            parse_sampling(options.sampling_words)
        raise_together(of_sampling + errors)


def _wrong_with_output(options: Options) -> list[ZerokitError]:
    errors: list[ZerokitError] = []
    with noted(errors):
        check_output(options.output, force=options.force)
    return errors


def _wrong_with_input(options: Options) -> list[ZerokitError]:
    errors: list[ZerokitError] = []
    with noted(errors):
        check_before_launch(options.model, where="--model", revision=options.revision)
    with noted(errors):
        given_files(options.prompts or (), "--prompts", options.split)
    if options.ds_config is not None:
        with noted(errors):
            load_ds_config(options.ds_config)
    return errors
