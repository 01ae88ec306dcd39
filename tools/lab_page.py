"""Write the lab's figures into README.md and docs/tide.md, between the markers `lab:begin` and `lab:end`.

    make lab                                            run the lab, then write; takes some minutes
    python -m tools.lab_page --from FILE IN_PLACE       write what two runs of the lab have found

The first run has every policy change size by restart, the second a few policies in place:

    python -m tidegate.lab --ways restart --json FILE
    python -m tidegate.lab --policy tide --policy cost --policy varga --policy flip271 --json IN_PLACE

Each table says which engine version, commit and seed its figures come from. Files for `--from` must come from
the commit that is checked out.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README, PAGE = ROOT / "README.md", ROOT / "docs" / "tide.md"
BLOCK = re.compile(r"(<!-- lab:begin -->\n).*?(<!-- lab:end -->)", re.DOTALL)
ORACLE = "oracle"
DEFAULT = "tide"
TUNED = " (tuned)"
IN_PLACE_POLICIES = (DEFAULT, "cost", "varga", "flip271")
"""The policies of the second run: the default, and the cheapest others of the first."""

BY_RESTART = "Each change of size is a restart; `cost` is a multiple of an oracle's that restarts too."
IN_PLACE = (
    "The same workloads, where the size changes in place, which is Tidegate's normal way. `cost` is a multiple of an "
    "oracle's that changes in place too. `by restart` is what the runs above cost, as a multiple of the same oracle's."
)


def by_policy(cells: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the cells of each policy that ran on every workload, the cheapest policy first; without the oracle."""
    workloads = {cell["workload"] for cell in cells}
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        if cell["policy"] != ORACLE:
            found.setdefault(cell["policy"], []).append(cell)
    complete = [(policy, own) for policy, own in found.items() if len(own) == len(workloads)]
    return sorted(complete, key=lambda item: (mean_cost(item[1]), item[0]))


def mean_cost(cells: Sequence[dict[str, Any]]) -> float:
    """Return the mean cost as a multiple of the oracle's."""
    return float(sum(cell["cost_over_oracle"] for cell in cells) / len(cells))


def late_seconds(cells: Sequence[dict[str, Any]]) -> float:
    """Return the seconds over the lag objective on all workloads."""
    return float(sum(cell["violated_seconds"] for cell in cells))


def summary_table(result: dict[str, Any]) -> str:
    """Return a row per policy: mean cost over the oracle's with its defaults and tuned, and seconds late."""
    found = dict(by_policy(result["cells"]))
    rows = ["| policy | cost | late | cost, tuned | late, tuned |", "| --- | --- | --- | --- | --- |"]
    for policy, cells in found.items():
        if policy.endswith(TUNED):
            continue
        tuned = found.get(policy + TUNED)
        shown = "- | -" if tuned is None else f"{mean_cost(tuned):.2f} | {late_seconds(tuned):,.0f} s"
        name = f"**`{policy}`**, the default" if policy == DEFAULT else f"`{policy}`"
        rows.append(f"| {name} | {mean_cost(cells):.2f} | {late_seconds(cells):,.0f} s | {shown} |")
    return "\n".join(rows)


def policy_table(result: dict[str, Any]) -> str:
    """Return a row per policy and tuning: mean and worst cost over the oracle's, seconds late, restarts."""
    rows = ["| policy | cost | worst | late | restarts |", "| --- | --- | --- | --- | --- |"]
    for policy, cells in by_policy(result["cells"]):
        worst = max(cell["cost_over_oracle"] for cell in cells)
        restarts = sum(cell["restarts"] for cell in cells)
        name = f"`{policy.removesuffix(TUNED)}`" + (", tuned" if policy.endswith(TUNED) else "")
        rows.append(f"| {name} | {mean_cost(cells):.2f} | {worst:.2f} | {late_seconds(cells):,.0f} s | {restarts} |")
    return "\n".join(rows)


def workload_table(result: dict[str, Any]) -> str:
    """Return a row per workload: the oracle's and `tide`'s cost, lateness and restarts."""
    found = {(cell["workload"], cell["policy"]): cell for cell in result["cells"]}
    rows = ["| workload | cost | late | restarts | restarts of the oracle |", "| --- | --- | --- | --- | --- |"]
    for (workload, policy), cell in found.items():
        if policy == DEFAULT:
            oracle = found[workload, ORACLE]
            rows.append(
                f"| {workload} | {cell['cost_over_oracle']:.2f} | {cell['violated_seconds']:,.0f} s "
                f"| {cell['restarts']} | {oracle['restarts']} |"
            )
    return "\n".join(rows)


def in_place_table(result: dict[str, Any], restarts: dict[str, Any]) -> str:
    """Return a row per policy of a run in place: cost over the oracle's, also by restart, seconds late, changes."""
    base = {cell["workload"]: cell["cost"] for cell in result["cells"] if cell["policy"] == ORACLE}
    before = dict(by_policy(restarts["cells"]))
    rows = ["| policy | cost | by restart | late | changes of size |", "| --- | --- | --- | --- | --- |"]
    for policy, cells in by_policy(result["cells"]):
        same = [cell["cost"] / base[cell["workload"]] for cell in before.get(policy, []) if cell["workload"] in base]
        shown = f"{sum(same) / len(same):.2f}" if same else "-"
        name = f"`{policy.removesuffix(TUNED)}`" + (", tuned" if policy.endswith(TUNED) else "")
        changes = sum(cell["rescales"] for cell in cells)
        rows.append(f"| {name} | {mean_cost(cells):.2f} | {shown} | {late_seconds(cells):,.0f} s | {changes} |")
    return "\n".join(rows)


def source(result: dict[str, Any], commit: str) -> str:
    """Return the line that says where the figures come from."""
    return f"Engine version {result['engine_version']}, commit `{commit}`, seed {result['seed']}."


def with_block(text: str, block: str) -> str:
    """Return a document with its marked block replaced. Raises `ValueError` unless it has exactly one."""
    written, count = BLOCK.subn(lambda found: f"{found[1]}{block}\n{found[2]}", text)
    if count != 1:
        raise ValueError(f"one block between lab:begin and lab:end is needed, found {count}")
    return written


def commit_here() -> str:
    """Return the abbreviated commit that is checked out, marked if files differ from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--abbrev=10", "--dirty", "--exclude=*"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return described.stdout.strip()


def measured(*options: str) -> dict[str, Any]:
    """Run the lab and return its scores."""
    with tempfile.TemporaryDirectory() as folder:
        scores = Path(folder) / "lab.json"
        lab = [sys.executable, "-m", "tidegate.lab", "--json", str(scores), *options]
        subprocess.run(lab, cwd=ROOT, check=True)
        return read(scores)


def read(path: Path) -> dict[str, Any]:
    """Return the scores in a file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the figures into both documents."""
    parser = argparse.ArgumentParser(prog="python -m tools.lab_page", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--from", dest="scores", type=Path, nargs=2, metavar=("FILE", "IN_PLACE"), help="scores, instead of running"
    )
    options = parser.parse_args(arguments)
    commit = commit_here()
    if options.scores:
        result, in_place = map(read, options.scores)
    else:
        # The pictures are those of the second run: they show how Tidegate changes size.
        result = measured("--ways", "restart", "--out", ".tidegate/lab-restart.png")
        in_place = measured(*(word for policy in IN_PLACE_POLICIES for word in ("--policy", policy)))
    if result["ways"] != ["restart"]:
        raise ValueError(f"the first run must be one by restart, found {', '.join(result['ways'])}")
    second = f"{IN_PLACE}\n\n{in_place_table(in_place, result)}"
    tables = {README: summary_table(result), PAGE: f"{policy_table(result)}\n\n{workload_table(result)}"}
    for path, first in tables.items():
        block = f"{BY_RESTART}\n\n{first}\n\n{second}\n\n{source(result, commit)}"
        path.write_text(with_block(path.read_text(encoding="utf-8"), block), encoding="utf-8")
    print(f"written: {README.name}, docs/{PAGE.name} ({source(result, commit)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
