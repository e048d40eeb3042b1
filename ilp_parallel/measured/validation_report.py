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
from ilp_parallel.measured.runs import read_runs
from ilp_parallel.measured.validation import GROUP_CASES, MACRO_CASES, validate
from ilp_parallel.report import render
from ilp_parallel.solving import versions
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from ilp_parallel.costs.profile import Profile
    from ilp_parallel.measured.comparison import Errors
    from ilp_parallel.measured.runs import Run
    from ilp_parallel.measured.validation import Source, Validation
    from ilp_parallel.report import Style

SCHEMA = "ilp_parallel.validate/1"


@dataclass(frozen=True, slots=True)
class FolderValidation:
    """What was compared with what, and the result."""

    validation: Validation
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
    runs, hashes = _read(folder)
    if not runs:
        raise InputError(
            "NO_RUNS",
            f"no file of {shown(folder)} has rows with the columns of a run",
            "give a folder of CSV files that do",
        )
    used = profile or default_profile()
    digest = hashlib.sha256(msgspec.json.encode([profile_document(used), hashes], order="sorted"))
    return FolderValidation(validate(runs, profile), used.name, digest.hexdigest(), len(hashes))


def _read(folder: str) -> tuple[tuple[Run, ...], list[str]]:
    """The runs of a folder, and the SHA-256 of each of its files."""
    try:
        runs = read_runs(folder)
        contents = [path.read_bytes() for path in sorted(Path(folder).rglob("*.csv"))]
    except (OSError, ValueError, csv.Error) as error:
        reason = f"{shown(folder)}: {shown(error)}"
        raise InputError("UNREADABLE_RUNS", reason, "give CSV files in UTF-8") from None
    return runs, [hashlib.sha256(content).hexdigest() for content in contents]


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
        },
        "macro_median_error": found.macro_median_error,
        "macro_sources": list(found.macro_sources),
        "fits": msgspec.to_builtins(found.fits),
        "sources": msgspec.to_builtins(found.sources),
        "not_covered": msgspec.to_builtins(found.not_covered),
        "configurations": [
            {
                "row": p.case.run.row_id,
                "source": p.case.run.source_id,
                "measured_s": p.case.measured_s,
                "predicted_s": p.predicted_s,
                "low_s": min(p.completions_s),
                "high_s": max(p.completions_s),
                "fits": p.fits,
            }
            for p in found.timed
        ],
    }


def validation_text(result: FolderValidation, style: Style) -> str:
    """The tables of ``validate``."""
    found = result.validation
    parts = [_totals(result)]
    if found.sources:
        parts = [_errors_table(found, style), _choices_table(found, style), *parts]
    if found.not_covered:
        parts.append(_not_covered_table(found, style))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


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
    return table + _lines(
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
    return table + _lines(
        f"groups: at least {GROUP_CASES} timed plans for equal model, devices, batch and kernels",
        f"tau: Kendall's, median over groups; pairs measured within {APART:.0%} are left out",
        "regret (median), p90, mean: time of the plan that the model picks over the best, less 1",
        "random: expected regret of a random pick among what ran, mean over groups",
        "rule: least recomputation, then tp x pp, then tp, then largest microbatch; rule and model",
        "  pick among what the model believes to fit",
        "OOM: groups where that pick ran out of memory, which no regret counts",
        "known, known rule: p90 of model and rule, were only what ran to choose from",
        *(
            f"{shown(s.id)}: in {s.none_fit} groups the model believes nothing to fit"
            for s in found.sources
            if s.none_fit
        ),
    )


def _totals(result: FolderValidation) -> str:
    found = result.validation
    rows, fits = found.rows, found.fits
    macro = "no source has as many"
    if found.macro_median_error is not None:
        macro = f"{_percent(found.macro_median_error)} % ({', '.join(found.macro_sources)})"
    return _lines(
        f"macro median error (mean over sources with {MACRO_CASES} configurations from 7 B on): "
        f"{macro}",
        f"fits: {fits.right} of {fits.n} right; {fits.false_fits} predicted to fit ran out of "
        "memory",
        f"rows: {rows.read} read = {rows.used} used + {rows.older_release} of older releases + "
        f"{rows.out_of_memory} out of memory + {rows.not_covered} not covered + "
        f"{rows.left_out} without a trustworthy time",
        f"rates: profile {shown(result.profile)}",
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


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)
