"""A folder of measured runs compared with the cost model, as JSON and as text."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ilp_parallel.costs.profile import default_profile, profile_document
from ilp_parallel.errors import InputError
from ilp_parallel.measured.comparison import APART
from ilp_parallel.measured.memory import LARGE_BYTES, memory_report
from ilp_parallel.measured.runs import read_runs
from ilp_parallel.measured.validation import GROUP_CASES, MACRO_CASES, validate
from ilp_parallel.report import render
from ilp_parallel.solving import versions
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ilp_parallel.costs.profile import Profile
    from ilp_parallel.measured.comparison import Errors
    from ilp_parallel.measured.memory import Fits, MemoryReport
    from ilp_parallel.measured.validation import Source, Validation
    from ilp_parallel.report import Style

SCHEMA = "ilp_parallel.validate/1"


@dataclass(frozen=True, slots=True)
class FolderValidation:
    """What was compared with what, and the result."""

    validation: Validation
    memory: MemoryReport
    fitted_on: tuple[str, ...]  # sources to which the profile's rates were fitted
    profile: str  # its name
    input_hash: str  # SHA-256 of the files' content and the profile
    files: int


def validate_folder(folder: str, profile: Profile | None) -> FolderValidation:
    """Compare the cost model, under a profile or the shipped one, with a folder of runs.

    Raises
    ------
    InputError
        ``NOT_A_FOLDER``, ``NO_RUNS``, ``UNREADABLE_RUNS``, or ``BAD_RUN`` with file and line.
    """
    used = profile or default_profile()
    try:
        runs, memory = read_runs(folder), memory_report(folder)
        paths = sorted(p for p in Path(folder).rglob("*") if p.suffix in (".csv", ".jsonl"))
        hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    except (OSError, ValueError, csv.Error) as error:
        reason = f"{shown(folder)}: {shown(error)}"
        raise InputError("UNREADABLE_RUNS", reason, "give CSV files in UTF-8") from None
    if not runs and memory.overall is None and not memory.not_covered:
        raise InputError(
            "NO_RUNS",
            f"no file of {shown(folder)} has rows with the columns of a run",
            "give a folder of CSV files that do",
        )
    found = validate(runs, profile)
    fitted_on = _fitted_on(used, [source.id for source in found.sources])
    digest = hashlib.sha256(msgspec.json.encode([profile_document(used), hashes], order="sorted"))
    return FolderValidation(found, memory, fitted_on, used.name, digest.hexdigest(), len(hashes))


def _fitted_on(profile: Profile, sources: Sequence[str]) -> tuple[str, ...]:
    """Those of some sources that the fitted rates of a profile name as theirs."""
    of_stacks = [rates for stack in profile.stacks.values() for rates in stack.values()]
    every = [rate for part in (*profile.generations.values(), *of_stacks) for rate in part.values()]
    named = {
        word.strip(",") for rate in every if rate.kind == "fitted" for word in rate.source.split()
    }
    return tuple(source for source in sources if source in named)


def validation_document(result: FolderValidation) -> dict[str, object]:
    """The JSON of ``validate``. All errors, spreads and regrets are fractions."""
    found = result.validation
    return {
        "schema": SCHEMA,
        "versions": versions(),
        "instance": {
            "hash": result.input_hash,
            "files": result.files,
            "rows": msgspec.to_builtins(found.rows),
            "profile": result.profile,
            "fitted_on": list(result.fitted_on),
        },
        "macro_median_error": found.macro_median_error,
        "macro_sources": list(found.macro_sources),
        "memory": _memory_document(result.memory),
        "fits": _fits_document(result.memory),
        "sources": msgspec.to_builtins(found.sources),
        "not_covered": msgspec.to_builtins(found.not_covered),
        "configurations": [
            {
                "row": p.case.run.row_id,
                "source": p.case.run.source,
                "measured_s": p.case.measured_s,
                "predicted_s": p.predicted_s,
                "low_s": min(p.completions_s),
                "high_s": max(p.completions_s),
                "fits": p.fits,
            }
            for p in found.timed
        ],
    }


def _memory_document(memory: MemoryReport) -> dict[str, object]:
    """Errors of peak memory: of all, and of each kind of measurement."""
    empty = {"n": 0, "median_error": None, "p90_error": None, "bias": None}
    whole = empty if memory.overall is None else msgspec.to_builtins(memory.overall)
    return {
        **whole,
        "golden_toy": msgspec.to_builtins(memory.golden_toy),
        "golden_large": msgspec.to_builtins(memory.golden_large),
        "devices": msgspec.to_builtins(memory.devices),
        "not_covered": memory.not_covered,
    }


def _fits_document(memory: MemoryReport) -> dict[str, object]:
    """Rows that ran or ran out of memory: all, by source, and with models not seen."""
    return {
        **_all_fits(memory.fits.values()),
        "by_source": msgspec.to_builtins(memory.fits),
        "left_out": _all_fits(memory.fits_left_out.values()),
    }


def _all_fits(parts: Collection[Fits]) -> dict[str, int]:
    names = ("n", "out_of_memory", "right", "false_fits", "false_ooms")
    return {name: sum(getattr(part, name) for part in parts) for name in names}


def _memory_parts(memory: MemoryReport) -> list[tuple[str, Errors]]:
    """Errors by kind of measurement."""
    golden = (
        (f"Megatron-LM tests below {LARGE_BYTES / 1e9:g} GB, allocated", memory.golden_toy),
        ("larger ones, allocated", memory.golden_large),
    )
    devices = [(f"{source}, on the device", errors) for source, errors in memory.devices.items()]
    return [(name, errors) for name, errors in golden if errors is not None] + devices


def validation_text(result: FolderValidation, style: Style) -> str:
    """The tables of ``validate``."""
    found = result.validation
    parts = [_totals(result, style)]
    if found.sources:
        parts = [_errors_table(found, style), _choices_table(found, style), *parts]
    if result.memory.overall is not None:
        parts.append(_memory_table(result.memory, style))
    if result.memory.fits:
        parts.append(_fits_table(result.memory, style))
    if found.not_covered:
        parts.append(_not_covered_table(found, style))
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _errors_table(found: Validation, style: Style) -> str:
    header = (
        *("source", "rows", "config.", "median", "p90", "bias", "interval"),
        *("< 7 B (n)", ">= 7 B (n)", "noise", "releases"),
    )
    rows = [
        (
            shown(s.id),
            str(s.n),
            str(s.n_configurations),
            _percent(s.median_error),
            _percent(s.p90_error),
            _percent(s.bias, signed=True),
            _interval(s),
            _of_size(s.below_7b),
            _of_size(s.from_7b),
            _percent(s.repeat_noise),
            _percent(s.release_spread),
        )
        for s in found.sources
    ]
    table = render("errors of the predicted step time (%)", header, rows, style)
    return table + _notes(
        style,
        "rows: of the newest release; repeats of one configuration are averaged and count once",
        "median, p90: of |predicted / measured - 1|; bias: median of predicted / measured - 1",
        "interval: the median error, were every blank cell filled in best, and worst",
        "< 7 B, >= 7 B: median error by model size (counted from the shapes)",
        "noise: median spread of repeated rows; releases: of one configuration over releases",
    )


def _choices_table(found: Validation, style: Style) -> str:
    header = (
        *("source", "groups", "tau", "regret", "p90", "mean", "random", "rule p90"),
        *("OOM", "rule OOM", "known", "known rule"),
    )
    rows = [
        (
            shown(s.id),
            str(s.n_groups),
            "-" if s.kendall is None else f"{s.kendall:.2f}",
            _percent(s.regret_median),
            _percent(s.regret_p90),
            _percent(s.regret_mean),
            _percent(s.random_regret),
            _percent(s.rule_regret),
            str(s.oom_picks),
            str(s.rule_oom_picks),
            _percent(s.known_regret_p90),
            _percent(s.known_rule_regret),
        )
        for s in found.sources
        if s.n_groups
    ]
    if not rows:
        return f"no group of {GROUP_CASES} timed plans for one job: no order, no regret\n"
    table = render("choosing among the plans of one job: order and regret (%)", header, rows, style)
    return table + _notes(
        style,
        f"groups: at least {GROUP_CASES} timed plans for equal model, devices, batch and kernels",
        f"tau: Kendall's, median over groups; pairs measured within {APART:.0%} are left out",
        "regret (median), p90, mean: time of the plan that the model picks over the best, less 1",
        "random: expected regret of a random pick among what ran, mean over groups",
        "rule: least recomputation, then tp x pp, then tp, then largest microbatch",
        "rule and model pick among what the model believes to fit",
        "OOM: groups where that pick ran out of memory, which no regret counts",
        "known, known rule: p90 of model and rule, were only what ran to choose from",
        *(
            f"{shown(s.id)}: in {s.none_fit} groups the model believes nothing to fit"
            for s in found.sources
            if s.none_fit
        ),
    )


def _totals(result: FolderValidation, style: Style) -> str:
    found = result.validation
    rows = found.rows
    fit = (
        f"fitted to {', '.join(map(shown, result.fitted_on))}: errors there are those of a fit; "
        "calibrate --leave-out tells errors on runs not seen"
    )
    macro = "no source has as many"
    if found.macro_median_error is not None:
        macro = f"{_percent(found.macro_median_error)} % ({', '.join(found.macro_sources)})"
    return _notes(
        style,
        f"macro median error (mean over sources with {MACRO_CASES} configurations from 7 B on): "
        f"{macro}",
        f"rows: {rows.read} read = {rows.used} used + {rows.older_release} of older releases + "
        f"{rows.out_of_memory} out of memory + {rows.not_covered} not covered + "
        f"{rows.left_out} without a trustworthy time",
        f"rates: profile {shown(result.profile)}",
        *([fit] if result.fitted_on else []),
    )


def _memory_table(memory: MemoryReport, style: Style) -> str:
    assert memory.overall is not None
    rows = [
        (
            shown(name),
            str(errors.n),
            _percent(errors.median_error),
            _percent(errors.p90_error),
            _percent(errors.bias, signed=True),
        )
        for name, errors in [*_memory_parts(memory), ("all", memory.overall)]
    ]
    header = ("measured peak", "rows", "median", "p90", "bias")
    table = render("errors of the predicted peak memory (%)", header, rows, style)
    reasons = ", ".join(f"{shown(reason)} {n}" for reason, n in memory.not_covered.items())
    return table + (_notes(style, f"rows not compared: {reasons}") if reasons else "")


def _fits_table(memory: MemoryReport, style: Style) -> str:
    header = (
        *("source", "rows", "out of memory", "right", "false fits", "false OOMs"),
        *("left out: false fits", "false OOMs"),
    )
    rows = []
    for source, fits in memory.fits.items():
        unseen = memory.fits_left_out[source]
        numbers = (fits.n, fits.out_of_memory, fits.right, fits.false_fits, fits.false_ooms)
        beside = (unseen.false_fits, unseen.false_ooms)
        rows.append((shown(source), *map(str, (*numbers, *beside))))
    table = render("whether a row fits, predicted and measured", header, rows, style)
    return table + _notes(
        style,
        "false fits: ran out of memory, predicted to fit; false OOMs: the reverse",
        "left out: allocator slack fitted on the other models and sequence lengths only",
    )


def _not_covered_table(found: Validation, style: Style) -> str:
    configurations: Counter[str] = Counter()
    sources: dict[str, list[str]] = {}
    for part in found.not_covered:
        configurations[part.reason] += part.configurations
        sources.setdefault(part.reason, []).append(shown(part.source))
    rows = [
        (shown(reason), str(count), ", ".join(sources[reason]))
        for reason, count in configurations.most_common()
    ]
    return render("not covered by the model", ("reason", "config.", "sources"), rows, style)


def _of_size(errors: Errors | None) -> str:
    return "-" if errors is None else f"{_percent(errors.median_error)} ({errors.n})"


def _interval(source: Source) -> str:
    if source.n_completed == 0:
        return "-"
    low, high = source.interval_median_error_low, source.interval_median_error_high
    return f"{_percent(low)}..{_percent(high)}"


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{100 * value:+.1f}" if signed else f"{100 * value:.1f}"


def _notes(style: Style, *lines: str) -> str:
    """Lines below a table; in markdown a list, apart from it."""
    if style == "md":
        return "\n" + "".join(f"- {line}\n" for line in lines)
    return "".join(f"{line}\n" for line in lines)
