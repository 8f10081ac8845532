"""An estimate for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from zerokit.estimation.advice import Advice, advice_lines, peak_line
from zerokit.estimation.fit import Fit, Limits, judge_given_host
from zerokit.memory import Estimate, Term
from zerokit.memory.settings import settings_of
from zerokit.reporting.phases import phase_words
from zerokit.reporting.tables import Cells, table
from zerokit.reporting.terminal import Part
from zerokit.reporting.verdicts import NEGATIVE, SHORT, host_line, judge, verdict_line
from zerokit.units import GIB, format_bytes, format_count, format_span, quantity

_MOST_LINES = 14
_LONGEST_FORMULA = 40
"""Longer formulas are printed by --explain."""
REHEARSE = "zerokit rehearse runs the real script where an estimate is not enough"
NO_VERDICT = "No verdict: name a card with --gpu, or its memory with --gpu-memory"


def estimate_parts(
    answer: Estimate,
    fit: Fit | None,
    limits: Limits | None,
    advice: list[Advice],
    plain: Estimate | None,
    *,
    details: bool,
) -> Iterator[Part]:
    """One estimate: the verdict and one table, with `details` every term."""
    if fit is None:
        yield NO_VERDICT
        if (host := judge_given_host(answer)) is not None:
            yield host_line(host)
    else:
        yield verdict_line(fit.verdict, fit.needed_low_bytes, fit.needed_high_bytes, fit.gpu_memory_bytes, fit.host)
    yield heading(answer)
    yield ""
    if details:
        yield from _all_tables(answer)
    else:
        yield _summary(answer)
    if plain is not None:
        yield _without_deepspeed(plain)
    if fit is not None:
        if judge(fit.needed_low_bytes, fit.needed_high_bytes, fit.gpu_memory_bytes) in NEGATIVE:
            yield peak_line(answer)
        yield from advice_lines(advice, answer, fit)
    yield from _limit_lines(answer, fit, limits)
    yield from _notes(answer)
    if not details:
        yield "--details prints every term, --explain their formulas"


def _all_tables(answer: Estimate) -> Iterator[Part]:
    yield _states(answer)
    yield _memory(answer)
    yield _phases(answer)
    yield _terms(f"What makes the peak, in {phase_words(answer.device.peak_phase)}", answer.device.terms_at_peak)
    host = answer.host.terms_at_peak
    if host:
        yield _terms(f"On the host, one rank, in {phase_words(answer.host.peak_phase)}", host)
    if answer.nvme.per_rank_bytes:
        yield _terms("On NVMe, one rank", answer.terms_of("nvme"))
    for term in answer.overheads:
        yield f"Not included above (a guess): {term.name}, {format_span(term.low, term.high)}; {term.source}"


def _summary(answer: Estimate) -> Part:
    """Return one table: model states as the ZeRO paper counts them, then what torch allocates."""
    device, host = answer.device, answer.host
    states: list[Cells] = [(line.name, line.bytes, line.symbols, line.place) for line in answer.model_states.each]
    outside = format_span(answer.device_low_bytes, answer.device_high_bytes)
    memory: list[Cells] = [
        ("GPU, peak", device.peak_bytes, "", f"in {phase_words(device.peak_phase)}"),
        ("  with CUDA context, NCCL and fragmentation", outside, "", "guess"),
        ("GPU, between steps", device.steady_bytes, "", ""),
        ("host, one rank", host.peak_bytes, "", f"in {phase_words(host.peak_phase)}"),
        ("host, one node", host.per_node_bytes, "", _ranks(answer)),
    ]
    if answer.nvme.per_node_bytes:
        memory.append(("NVMe, one node", answer.nvme.per_node_bytes, "", _ranks(answer)))
    return table("Memory", ["", "Bytes", "Formula", ""], [*states, *memory])


def heading(answer: Estimate, without: tuple[str, ...] = ()) -> str:
    """The run in one line, without the sizes named in `without`."""
    run, settings = answer.run, settings_of(answer.run)
    trained = answer.num_trainable_parameters
    model = f"Φ = {format_count(answer.num_parameters)}"
    if not isinstance(run.model, int):
        model = f"{run.model.name} (Φ = {answer.num_parameters:,})"
    if trained != answer.num_parameters:
        model += f", Φₜ = {trained:,} trained"
    gpus = "" if "num_gpus" in without else f" on {quantity(run.world_size, 'GPU')}"
    if run.world_size > run.cluster.gpus_per_node:
        gpus += f", {run.cluster.gpus_per_node} per node"
    words = [] if "zero_stage" in without else [run.sharding]
    words += [f"{name} parallelism over {size}" for name, size in vars(run.parallelism).items() if size > 1]
    words += ["fp32 weights under autocast" if run.autocast else settings.precision, settings.optimizer.name]
    for what, device in (("optimizer", settings.offload_optimizer), ("parameters", settings.offload_param)):
        if device != "none":
            words.append(f"{what} on {'the host' if device == 'cpu' else 'NVMe'}")
    if run.adapter is not None:
        words.append(run.adapter.name)
    if run.learned_tokens is not None:
        words.append(quantity(run.learned_tokens.count, "learned token"))
    if answer.activations_counted:
        if "micro_batch_size" not in without:
            default = " (the Trainer's default)" * run.micro_batch_is_default
            words.append(f"micro batch {run.micro_batch_size}{default}")
        if "seq_len" not in without:
            words.append(f"{run.seq_len:,} tokens")
        forced = run.attention is None and run.attention_used != "sdpa"
        words.append(f"{run.attention_used} attention{f' ({run.attention_reason})' * forced}")
        if run.gradient_checkpointing:
            words.append("gradient checkpointing" + " on the host" * run.activation_offloading)
        if run.tiled_mlp:
            words.append("tiled MLP")
    if settings.accumulation_steps > 1:
        words.append(f"accumulation over {settings.accumulation_steps}")
    return f"{model}{gpus}: {', '.join(words)}"


def _states(answer: Estimate) -> Part:
    lines = answer.model_states.each
    rows: list[Cells] = [(line.name, line.symbols, line.numbers, line.gpu_bytes, line.place) for line in lines]
    formula = " + ".join(line.symbols for line in lines)
    rows.append(("on the GPU", "", "", answer.model_states.total_bytes, ""))
    return table(f"Model states, {formula} bytes", ["", "Formula", "Numbers", "One GPU", "Where"], rows)


def _memory(answer: Estimate) -> Part:
    device, host = answer.device, answer.host
    outside = format_span(answer.device_low_bytes, answer.device_high_bytes)
    rows: list[Cells] = [
        ("GPU, allocated", device.peak_bytes, device.steady_bytes, f"in {phase_words(device.peak_phase)}"),
        ("  plus CUDA context, NCCL, fragmentation", outside, "", "guess"),
        ("Host, one rank", host.peak_bytes, host.steady_bytes, f"in {phase_words(host.peak_phase)}"),
        ("  of it pinned", host.pinned_bytes, "", ""),
        ("Host, one node", host.per_node_bytes, "", _ranks(answer)),
        ("  of it pinned", host.per_node_pinned_bytes, "", ""),
    ]
    if answer.nvme.per_node_bytes:
        rows.append(("NVMe, one node", answer.nvme.per_node_bytes, answer.nvme.per_node_bytes, _ranks(answer)))
    return table("Memory", ["", "Peak", "Between steps", ""], rows)


def _ranks(answer: Estimate) -> str:
    return quantity(answer.run.cluster.local_ranks, "rank")


def _phases(answer: Estimate) -> Part:
    device = answer.device
    rows = [
        (phase_words(phase), held, "peak" if phase == device.peak_phase else "")
        for phase, held in device.by_phase.items()
    ]
    return table("GPU memory by phase", ["Phase", "Allocated", ""], rows)


def _terms(title: str, terms: Iterable[Term]) -> Part:
    held = sorted((term for term in terms if term.bytes), key=lambda term: -term.bytes)
    total = sum(term.bytes for term in held)
    shown, rest = held[:_MOST_LINES], held[_MOST_LINES:]
    rows: list[Cells] = [
        (term.name, term.bytes, f"{term.bytes / total:.1%}", term.certainty, _short(term.symbols)) for term in shown
    ]
    if rest:
        size = sum(term.bytes for term in rest)
        rows.append((f"{len(rest)} more", size, f"{size / total:.1%}", "", ""))
    return table(title, ["Term", "Bytes", "Share", "How sure", "Formula"], rows)


def _short(symbols: str) -> str:
    return symbols if len(symbols) <= _LONGEST_FORMULA else "see --explain"


def _without_deepspeed(plain: Estimate) -> str:
    """The line about plain torch below stage 0, which keeps master weights."""
    states = plain.model_states
    total = sum(one.unit for one in states.each)
    span = format_span(plain.device_low_bytes, plain.device_high_bytes)
    return (
        f"Without DeepSpeed (--zero-stage none) it needs {span}: model states of {total} bytes per trained "
        "parameter, moments in bf16, no fp32 master weights. Stage 0 is DeepSpeed's, with master weights"
    )


def _limit_lines(answer: Estimate, fit: Fit | None, limits: Limits | None) -> Iterator[str]:
    if limits is None or fit is None:
        return
    run = answer.run
    size = format_bytes(fit.gpu_memory_bytes)
    gpus = quantity(run.world_size, "GPU")
    if answer.activations_counted:
        batch = limits.micro_batch_size
        yield (
            f"Largest micro batch at {run.seq_len:,} tokens on {gpus} of {size}: "
            f"{'none' if batch is None else format(batch, ',')}"
        )
        longest = limits.seq_len
        yield (
            f"Longest sequences at micro batch {run.micro_batch_size} on {gpus} of {size}: "
            f"{'none' if longest is None else f'{longest:,} tokens'}"
        )
    fewest = limits.num_gpus
    yield f"Fewest GPUs of {size}: {'no number with these settings' if fewest is None else format(fewest, ',')}"
    yield "These are sizes that certainly fit (tight does not count)"


def _notes(answer: Estimate) -> Iterator[str]:
    for warning in answer.warnings:
        yield f"Note: {warning}"
    if len(answer.warnings) > len(answer.run.notes):
        yield f"Hint: {REHEARSE}"


def sweep_parts(answers: list[tuple[Estimate, Fit | None]], varied: tuple[str, ...]) -> Iterator[Part]:
    """Several estimates: the verdict, then one line each with the sizes that differ first."""
    first, fit = answers[0]
    yield from _verdicts(answers)
    yield heading(first, without=varied)
    yield ""
    columns = [SIZES[name] for name in varied]
    columns += ["States", "Peak", "Peak in", "Up to", "Between steps", "Host", "Node"]
    has_nvme = any(answer.nvme.per_node_bytes for answer, _ in answers)
    columns += ["NVMe"] * has_nvme + ["Fits"] * (fit is not None)
    yield table("Memory, GiB", columns, [_sweep_row(*one, varied, has_nvme) for one in answers])
    yield "States: model states of one GPU, as the ZeRO paper counts. Peak, Between steps: as torch allocates"
    yield "Up to: the peak with CUDA context, NCCL and fragmentation. Host: one rank. Node: all its ranks"
    for warning in dict.fromkeys(warning for answer, _ in answers for warning in answer.warnings):
        yield f"Note: {warning}"
    if fit is not None and not any(one is not None and one.verdict == "fits" for _, one in answers):
        yield "Hint: No setting certainly fits. For advice give one setting"


SIZES = {"gpu": "GPU", "zero_stage": "ZeRO", "num_gpus": "GPUs", "micro_batch_size": "Batch", "seq_len": "Tokens"}
"""Sizes that can vary, with their column heads."""


def sizes(answer: Estimate) -> dict[str, int | str | None]:
    """The sizes of a run."""
    run = answer.run
    stage = "none" if run.without_deepspeed else run.zero_stage
    card = None if run.cluster.gpu is None else run.cluster.gpu.name
    return dict(zip(SIZES, (card, stage, run.world_size, run.micro_batch_size, run.seq_len), strict=True))


def _sweep_row(answer: Estimate, fit: Fit | None, varied: tuple[str, ...], has_nvme: bool) -> tuple[str, ...]:
    given = sizes(answer)
    shown = [given[name] for name in varied]
    row = ["-" if size is None else f"{size:,}" if isinstance(size, int) else size for size in shown]
    row += [
        _gib(answer.model_states.total_bytes),
        _gib(answer.device.peak_bytes),
        answer.device.peak_phase,
        _gib(answer.device_high_bytes),
        _gib(answer.device.steady_bytes),
        _gib(answer.host.peak_bytes),
        _gib(answer.host.per_node_bytes),
    ]
    row += [_gib(answer.nvme.per_node_bytes)] * has_nvme
    if fit is not None:
        row.append(SHORT[fit.verdict])
    return tuple(row)


def _verdicts(answers: list[tuple[Estimate, Fit | None]]) -> Iterator[str]:
    by_card: dict[str, list[Fit]] = {}
    for answer, fit in answers:
        if fit is not None:
            by_card.setdefault(str(sizes(answer)["gpu"]), []).append(fit)
    for name, fits in by_card.items():
        number = sum(fit.verdict == "fits" for fit in fits)
        memory = [fit.host.memory_bytes for fit in fits if fit.host.memory_bytes is not None]
        hosts = ""
        if memory:
            rented = " (typical cloud nodes)" * fits[0].host.as_rented
            hosts = f" and nodes of {format_span(min(memory), max(memory))}{rented}"
        elif number and any(fit.host.is_condition for fit in fits):
            hosts = ", if each node has the memory in column Node plus some GiB (--host-memory)"
        size = format_bytes(fits[0].gpu_memory_bytes)
        if len(by_card) == 1:
            yield f"{number} of {len(fits)} settings fit a GPU of {size}{hosts}"
        elif len(fits) == 1:
            yield f"{name}, {size}: {fits[0].verdict}"
        else:
            yield f"{name}, {size}: {number} of {len(fits)} settings fit"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:,.{1 if num_bytes >= 10 * GIB else 2}f}"
