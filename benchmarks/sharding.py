"""Contest instances: our cost, bound, gap and time beside the published ones.

Run with a folder of instances (default ``../shared/data/iopddl``, or IOPDDL_DATA) and, if wanted,
names: ``python benchmarks/sharding.py A B``. Every row is a cold process under the contest's limit.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

DATA = Path(os.environ.get("IOPDDL_DATA", Path(__file__).parents[2] / "shared/data/iopddl"))


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def solve(instance: str, limit_s: str) -> dict[str, object]:
    command = [sys.executable, "-m", "ilp_parallel", "shard", str(DATA / f"{instance}.json.gz")]
    command += ["--time-limit", limit_s, "--threads", "2", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


def main() -> None:
    if not DATA.is_dir():
        sys.exit(f"no folder {DATA}: set IOPDDL_DATA")
    wanted = set(sys.argv[1:])
    teams = rows("contest_results.csv")
    print("|instance|cost|bound|gap|proof|seconds|limit|best published|its bound|rank of 20|")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for known in rows("best_known.csv"):
        name, limit_s = known["instance"], known["contest_time_limit_s"]
        if wanted and name not in wanted:
            continue
        found = solve(name, limit_s)
        cost, gap = found["objective"], found["gap"]
        rank = "-"
        if cost is not None:
            costs = [int(team[name]) for team in teams if team[name]]
            rank = str(1 + sum(other < cost for other in costs))
        shown = "-" if gap is None else f"{100 * gap:.4f} %"
        cells = (name, cost, found["bound"], shown, found["proof"])
        cells += (f"{found['timing']['total_s']:.1f}", limit_s)
        cells += (known["best_published_cost"], known["published_lower_bound"], rank)
        print("|" + "|".join(map(str, cells)) + "|", flush=True)


if __name__ == "__main__":
    main()
