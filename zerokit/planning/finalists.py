"""Rehearses the best plans with their own ds_config and recipe, in processes of their own."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from zerokit.choices import SAFE_PATH
from zerokit.data.content import digest_files
from zerokit.data.files import find_files
from zerokit.errors import ZerokitError
from zerokit.extras import missing_packages, package_versions
from zerokit.files import write_file
from zerokit.models.load import model_config
from zerokit.planning.cache import code_state, remember, remembered
from zerokit.planning.candidates import Candidate, Offer
from zerokit.planning.evaluate import Evaluator, Need
from zerokit.planning.job import PlanJob
from zerokit.planning.ranking import choose_plans, rank
from zerokit.planning.recipe import DS_CONFIG, NVME_FOLDER, RECIPE, ds_config_of, recipe_of, recipe_text, task_of
from zerokit.planning.search import Configuration, Fitting, Miss, SearchResult, best_of_offer, space_of
from zerokit.planning.workload import Workload
from zerokit.rehearsal.scratch import scratch_folder
from zerokit.reporting.phases import phase_words
from zerokit.reporting.verdicts import NEGATIVE
from zerokit.units import listed

_ZEROKIT = (sys.executable, "-m", "zerokit")
_TIMEOUT = "1h"
"""For one rehearsal: only one that hangs takes as long."""
_MOST_REPLACED = 4
"""Further plans that are rehearsed because the best one did not fit, or turned out worse."""
_MOST_ACCUMULATION = 3
"""Forward passes per step that are rehearsed: from 3 on they are alike."""
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "vocab.txt")
_READ = (".json", ".model", ".txt", ".jinja")
"""Suffixes of the files of a model that a rehearsal reads."""
_NOT_OF_THE_RUN = {
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDA_LAUNCH_BLOCKING")
}
"""Variables of this machine that would change what is rehearsed."""
_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
_WORD = "a"


@dataclass
class Finalists:
    """The rehearsals of the best plans."""

    reports: dict[tuple[Offer, Candidate], dict[str, Any]] = field(default_factory=dict)
    """``zerokit rehearse --format json`` of each plan that was rehearsed."""
    notes: list[str] = field(default_factory=list)
    """What differs from the run, and what could not be rehearsed; one sentence each."""
    is_complete: bool = True
    """False if the user stopped the rehearsals."""


def rehearse_finalists(
    job: PlanJob,
    result: SearchResult,
    evaluator: Evaluator,
    number: int,
    progress: Callable[[str], None] = lambda words: None,
) -> Finalists:
    """Rehearse the best `number` plans, then what becomes the best; an interrupt (Ctrl-C) ends it early.

    Args:
        result: of the search. Figures of rehearsed configurations become those of the rehearsal. One that
            does not fit becomes a miss, and the next best of its offer takes its place.
    """
    finalists = Finalists()
    if number and (reason := not_possible()):
        finalists.notes.append(reason)
        return finalists
    tried: set[tuple[Offer, Candidate]] = set()
    costs = _RehearsedCosts(evaluator)
    try:
        while number:
            best = choose_plans(rank(job, result), job.goal)[: number if len(tried) < number else 1]
            found = next((one.found for one in best if (one.offer, one.found.candidate) not in tried), None)
            if found is None or len(tried) == number + _MOST_REPLACED:
                break
            tried.add((found.offer, found.candidate))
            progress(f"{found.offer.words}: {found.candidate.words}")
            try:
                rehearsed, report = rehearse(found, job, evaluator)
            except ZerokitError as error:
                finalists.notes.append(f"{found.offer.words} was not rehearsed: {error.message}")
                continue
            finalists.reports[found.offer, found.candidate] = report
            costs.rehearsed[found.candidate] = rehearsed.need
            _replace(result, found, rehearsed, job, costs)
    except KeyboardInterrupt:
        finalists.is_complete = False
        finalists.notes.append("rehearsals were stopped")
    first = next(iter(rank(job, result)), None)
    if number and first is not None and (first.offer, first.found.candidate) not in finalists.reports:
        finalists.notes.append("the first plan was not rehearsed: its figures come from formulas")
    finalists.notes += _differences(job, [candidate for _, candidate in finalists.reports])
    return finalists


class _RehearsedCosts:
    """Costs whose memory is that of a rehearsal, if there is one."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.rehearsed: dict[Candidate, Need] = {}
        self.seconds = evaluator.seconds
        self.least_seconds = evaluator.least_seconds
        self._estimated = evaluator.memory

    def memory(self, candidate: Candidate) -> Need:
        return self.rehearsed.get(candidate) or self._estimated(candidate)


def _replace(
    result: SearchResult, found: Configuration, rehearsed: Configuration, job: PlanJob, costs: _RehearsedCosts
) -> None:
    """Give a configuration the figures of its rehearsal, or replace it if it does not fit."""
    place = [one.offer for one in result.offers].index(found.offer)
    of_offer = result.offers[place]
    if rehearsed.fit not in NEGATIVE:
        if of_offer.fits is found:
            result.offers[place] = replace(of_offer, fits=rehearsed)
        else:
            result.offers[place] = replace(of_offer, tight=rehearsed)
        return
    space = space_of(job)
    again = best_of_offer(found.offer, space, costs, Fitting(costs, space))
    again.misses.append(Miss(found.offer, found.candidate, rehearsed.need))
    result.offers[place] = again


def not_possible() -> str | None:
    """Why nothing can be rehearsed here; None if it can."""
    absent = [*missing_packages("rehearse"), *missing_packages("train")]
    if not absent:
        return None
    names = list(dict.fromkeys(absent))
    verb = "are" if names[1:] else "is"
    return f"Nothing was rehearsed, because {listed(names)} {verb} not installed; figures come from formulas."


def _differences(job: PlanJob, candidates: list[Candidate]) -> Iterator[str]:
    """What rehearsals have otherwise than the run."""
    if any(one.gradient_accumulation_steps > _MOST_ACCUMULATION for one in candidates):
        yield (
            f"Rehearsals have at most {_MOST_ACCUMULATION} forward passes per step; formulas extend their time to all "
            "of them."
        )
    if candidates and not _has_own_data(job):
        yield "Rehearsals use made-up tokens with the lengths of the plan."


def rehearse(found: Configuration, job: PlanJob, evaluator: Evaluator) -> tuple[Configuration, dict[str, Any]]:
    """Rehearse a configuration with ``zerokit train``, or find the remembered rehearsal.

    Args:
        evaluator: extends the time of few forward passes per step to that of many.

    Returns:
        The configuration with the figures of the rehearsal, and the report of ``zerokit rehearse``.

    Raises:
        ZerokitError: the rehearsal failed.
    """
    candidate, offer = found.candidate, found.offer
    passes = min(candidate.gradient_accumulation_steps, _MOST_ACCUMULATION)
    few = replace(candidate, gradient_accumulation_steps=passes)
    whole, rehearsed = evaluator.seconds(candidate, offer), evaluator.seconds(few, offer)
    files, words = dict(_files(few, offer, job)), list(_words(offer, job))
    if not _has_own_data(job):
        words += ["--scan", "0"]  # each step has all of them
    if passes > 1:  # ZeRO-3 prefetches from the third forward pass on
        words += ["--steps", "2"]
    key = ["rehearsal", code_state(), package_versions(), sys.version, files, words, _content(job)]
    report = remembered(key)
    if not isinstance(report, dict):
        report = _run(files, words)
        remember(key, report)
    fit, time, host = report["fit"], report["time"], report["fit"]["host"]
    need = Need(
        device_low=fit["low_bytes"],
        device_high=fit["high_bytes"],
        host_low=host["needed_low_bytes"],
        host_high=host["needed_high_bytes"],
        nvme=host["nvme_needed_bytes"],
        phase=phase_words(report["device"]["peak_phase"]),
        at_peak=report["device"]["at_peak"],
    )
    # The optimizer's step comes once, whatever the number of passes: formulas add the missing passes.
    parts = {
        part: of + whole.parts.get(part, 0) - rehearsed.parts.get(part, 0) for part, of in time["breakdown"].items()
    }
    step = time["step_seconds"] + whole.seconds - rehearsed.seconds
    low, high = (
        time[f"costs_{end}_seconds"] + whole.of_costs[place] - rehearsed.of_costs[place]
        for place, end in enumerate(("low", "high"))
    )
    seconds = evaluator.step_time(found.candidate, offer, (low, high), step, parts)
    return replace(found, need=need, time=seconds, fit=fit["verdict"]), report


def _words(offer: Offer, job: PlanJob) -> Iterator[str]:
    """Options of ``zerokit rehearse``."""
    yield from ("--num-gpus", str(offer.num_gpus), "--gpus-per-node", str(offer.gpus_per_node), "--time")
    if job.hardware is None:
        yield from ("--gpu", offer.gpu.name)
    else:
        yield from ("--hardware", str(job.hardware.absolute()))
    if offer.network_gbit_s is not None:
        yield from ("--network", f"{offer.network_gbit_s:.12g}")
    if offer.cluster.host_bytes is not None:
        yield from ("--host-memory", str(offer.cluster.host_bytes))
    yield from ("--no-advise", "--timeout", _TIMEOUT, "--format", "json")


def _run(files: dict[str, str], words: list[str]) -> dict[str, Any]:
    command = [*_ZEROKIT, "rehearse", *words, "-m", "zerokit.train", "--recipe", RECIPE]
    # Nothing is fetched, and the run's own reports go nowhere.
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_OF_THE_RUN}
    environment |= {SAFE_PATH: "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
    with scratch_folder() as folder:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_file(folder / name, text)
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    try:
        report = json.loads(done.stdout)
    except ValueError:
        raise ZerokitError(f"the rehearsal failed: {_find_cause(done.stderr) or done.returncode}") from None
    if not isinstance(report, dict) or report.get("time") is None or report["fit"]["host"] is None:
        raise ZerokitError("the rehearsal reports no time")
    return report


def _find_cause(stderr: str) -> str:
    """The line that names the cause: zerokit's error, or the exception of a script that fails, else the last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    error = next((line for line in lines if line.startswith("zerokit: error:")), "")
    if "the script fails" in error:
        raised = [line for line in lines if re.match(r"(\[rank\d+\]: )?[\w.]*(Error|Exception)(:|$)", line)]
        return raised[-1] if raised else error
    return error or (lines[-1] if lines else "")


def _files(candidate: Candidate, offer: Offer, job: PlanJob) -> Iterator[tuple[str, str]]:
    """The plan's ds_config and recipe, and what replaces a model or data that are not on this machine."""
    ds_config, _ = ds_config_of(candidate, job)
    recipe = recipe_of(candidate, job, ds_config)
    if not _has_own_data(job):
        recipe["model"] = "model"
        recipe["data"] = {"train": "data.jsonl", "eval_fraction": 0}
        recipe["training"]["num_train_epochs"] = 3  # an epoch is a step
        yield "model/config.json", json.dumps(_config(job))
        yield from _tokenizer()
        sequences = candidate.data_ranks * candidate.micro_batch_size * candidate.gradient_accumulation_steps
        # Several examples in a packed sequence need a mask; with sequence parallelism each is attended by itself, and
        # the longest that there can be is what the formulas count.
        parts = 2 if job.workload.packing and candidate.parallel.sequence == 1 else 1
        yield "data.jsonl", "".join(f"{json.dumps(row)}\n" for row in _rows(job, sequences, parts))
    yield DS_CONFIG, json.dumps(ds_config).replace(NVME_FOLDER, "nvme")
    yield RECIPE, recipe_text(recipe)


def _config(job: PlanJob) -> dict[str, Any]:
    config = job.recipe.get("model", {}).get("from_config")
    return config if isinstance(config, dict) else dict(model_config(config or job.model_name))


def _has_own_data(job: PlanJob) -> bool:
    """Whether this machine has the run's data, and the tokenizer of its model."""
    model = job.recipe.get("model", {"path": job.model_name})
    tokenizer = model.get("tokenizer", model.get("path"))
    is_here = isinstance(tokenizer, dict) or any((Path(tokenizer) / name).is_file() for name in _TOKENIZERS)
    return is_here and bool(_data_files(job))


def _data_files(job: PlanJob) -> list[Path]:
    """The run's files; empty for data of the Hub, and without any."""
    train = job.recipe.get("data", {}).get("train") if job.recipe else list(job.data_files)
    sources = [train] if isinstance(train, str) else list(train or ())
    try:
        return list(find_files(sources, "data.train", None) or ()) if sources else []
    except ZerokitError:
        return []


def _content(job: PlanJob) -> list[str]:
    """Digests of the files that a rehearsal reads beside those of :func:`_files`."""
    files = [] if not _has_own_data(job) else [*_data_files(job), *_model_files(job)]
    if job.hardware is not None:
        files.append(job.hardware)
    return [content.digest for content in digest_files(files).values()]


def _model_files(job: PlanJob) -> list[Path]:
    """What a rehearsal reads of a local model, except its weights, of which it only needs names and shapes."""
    model = job.recipe.get("model", {"path": job.model_name})
    folders = {Path(model[key]) for key in ("path", "from_config", "tokenizer") if isinstance(model.get(key), str)}
    found = [file for folder in folders if folder.is_dir() for file in folder.iterdir() if file.suffix in _READ]
    configs = [Path(one) for one in (model.get("from_config"), job.model_name) if isinstance(one, str)]
    return sorted({*found, *(file for file in configs if file.is_file())})


def _tokenizer() -> Iterator[tuple[str, str]]:
    """A tokenizer with a few special tokens and one word."""
    model = {"type": "WordLevel", "vocab": {}, "unk_token": _SPECIAL["unk_token"]}
    model["vocab"] = {token: number for number, token in enumerate((*_SPECIAL.values(), _WORD))}
    words = {"version": "1.0", "added_tokens": [], "model": model}
    words["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": _SPECIAL["eos_token"], **_SPECIAL}
    yield "model/tokenizer.json", json.dumps(words)
    yield "model/tokenizer_config.json", json.dumps(settings)


def _rows(job: PlanJob, sequences: int, parts: int) -> Iterator[dict[str, str]]:
    """Examples for one step, with the lengths of the data in their shares, the longest included.

    Args:
        parts: examples of a sequence, if the lengths are not known.
    """
    completion = {"completion": " ".join([_WORD] * 127)}  # of seq2seq, whose target_len is 128
    for length in _lengths(job.workload, sequences, parts):
        words = " ".join([_WORD] * max(1, length - 1))  # and a special token
        yield {"prompt": words, **completion} if task_of(job) == "seq2seq" else {"text": words}


def _lengths(workload: Workload, sequences: int, parts: int) -> list[int]:
    if workload.lengths is None:
        return [workload.seq_len // parts] * (sequences * parts)
    lengths = sorted(workload.lengths)
    sums = list(accumulate(workload.lengths[length] for length in lengths))
    shares = ((number + 0.5) / sequences * sums[-1] for number in range(sequences - 1))
    found = [*(lengths[bisect_left(sums, share)] for share in shares), lengths[-1]]
    random.Random(0).shuffle(found)  # noqa: S311
    return found
