"""The benchmark of the README: every row a cold process, everything after parsing counted.

Run ``make bench`` (all rows) or ``make bench ARGS=gpt3`` (rows whose name contains the word).
Per row: the search in its space, the dynamic program, verification, and afterwards the winning
configuration solved again by the interval and counts formulations on HiGHS and CP-SAT.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.plan_files import read_certificate, read_plan
from ilp_parallel.programs import solve_configuration
from ilp_parallel.spaces import get_space

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import PipelineInstance

LONG = ("--cluster", "h100-80gb:8x8", "--seq", "131072", "--batch", "64")
"""A job that needs context ranks to be fast."""

DEEPSEEK = (
    *("--cluster", "h800-80gb:256x8", "--batch", "15360", "--seq", "4096"),
    *("--workers", "2"),
)
"""What DeepSeek-V3 was trained on (arXiv 2412.19437, sections 3.1 and 4.2), on both cores."""

HUGE = str(Path(__file__).with_name("gpt-10t.json"))
"""A GPT of ten trillion parameters, which nobody has published."""

ROWS = (
    ("gpt3", "mixed", (), 3.0),
    ("gpt3", "megatron", (), 2.0),
    ("turing-530b", "mixed", (), 5.0),
    ("megatron-1t", "mixed", (), 5.0),
    ("llama3-405b", "mixed", (), 6.0),
    ("llama3-8b", "mixed", (), 1.0),
    ("llama3-8b", "mixed", LONG, 3.0),
    *(
        ("gpt3", "mixed", ("--cluster", f"a100-80gb:{nodes}x8"), 8.0)
        for nodes in (8, 16, 32, 64, 256, 512, 1024, 2048)
    ),
    ("mixtral-8x7b", "megatron", ("--cluster", "h100-80gb:8x8"), 5.0),
    ("qwen3-235b-a22b", "megatron", ("--cluster", "h100-80gb:32x8"), 10.0),
    ("deepseek-v3", "megatron", DEEPSEEK, 10.0),
    ("t5-11b", "megatron", ("--cluster", "a100-80gb:4x8"), 5.0),
    (HUGE, "mixed", ("--cluster", "h100-80gb:8192x8", "--batch", "16384", "--seq", "2048"), 60.0),
)
"""Model, space, further options, seconds the search may take."""


def main() -> None:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    print(machine(), "\n")
    print(
        "| job | proven, exact, DP equal, verified | step time s | search_s | goal s | peak MiB "
        "| configurations by fate | strategies per layer | winner again: interval, counts |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for model, space, options, goal in ROWS:
        name = " ".join((Path(model).stem, *options[1::2], space))
        if word in name:
            print(row(name, model, space, options, goal), flush=True)
    if not word:
        print(f"\nfrom the shell: `ilp-parallel solve gpt3` {shell_seconds():.2f} s")


def row(name: str, model: str, space: str, options: tuple[str, ...], goal: float) -> str:
    """One row of the table, measured in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "answer.json"))
        peak_mib = run(["solve", model, "--space", space, *options, "-o", file])
        answer = json.loads(Path(file).read_text())
        instance = winning_instance(file)
    good = (
        answer["status"] == "optimal"
        and answer["proof"] == "exact"
        and answer["objective"] == answer["bound"]
        and answer["dp_step_time_s"] == answer["step_time_s"]
        and answer["verified"]
    )
    fates = ", ".join(f"{kind} {count}" for kind, count in answer["configurations"].items())
    return (
        f"| {name} | {'yes' if good else 'NO'} | {answer['step_time_s']:.6f} "
        f"| {answer['timing']['search_s']:.2f} | {goal:g} | {peak_mib:.0f} | {fates} "
        f"| {int(instance.allowed.sum())} | {winner_again(instance)} |"
    )


def run(arguments: list[str]) -> float:
    """Run the command line; peak memory of the process in MiB."""
    process = subprocess.Popen([sys.executable, "-m", "ilp_parallel", *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(arguments)} failed")
    return usage.ru_maxrss / 1024


def winning_instance(file: str) -> PipelineInstance:
    """The instance of the winning configuration, built again from the result."""
    plan, certificate = read_plan(file), read_certificate(file)
    costs = CostModel(plan.model, plan.cluster, plan.job)
    builder = InstanceBuilder(costs, get_space(plan.space), certificate.pins)
    return builder.build(plan.configuration)


def winner_again(instance: PipelineInstance) -> str:
    """Whether interval and counts on HiGHS and CP-SAT give the value of the dynamic program."""
    optimum = two_level_dp(instance)
    words = []
    for formulation in ("interval", "counts"):
        for solver in ("highs", "cp-sat"):
            try:
                cutoff = optimum.numerator + 1 if formulation == "interval" else None
                outcome = solve_configuration(instance, formulation, solver, cutoff, 60.0)
            except InputError as error:
                words.append(f"{formulation}/{solver} {error.code}")
                continue
            equal = outcome.status == "optimal" and outcome.objective == optimum.numerator
            took = outcome.build_s + outcome.solve_s
            words.append(f"{formulation}/{solver} {'=' if equal else outcome.status} {took:.2f} s")
    return ", ".join(words)


def shell_seconds() -> float:
    """Wall time of the plain command, Python's start included."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "ilp_parallel", "solve", "gpt3"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - started


def machine() -> str:
    """Processor, cores, memory, Python."""
    info = Path("/proc/cpuinfo")
    names = [
        line.split(":", 1)[1].strip()
        for line in (info.read_text().splitlines() if info.exists() else [])
        if line.startswith("model name")
    ]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    limit = "" if soft == resource.RLIM_INFINITY else f", limit {soft / 2**30:.0f} GiB"
    return (
        f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, "
        f"{pages:.0f} GiB{limit}, Python {platform.python_version()}, {platform.system()}"
    )


if __name__ == "__main__":
    main()
