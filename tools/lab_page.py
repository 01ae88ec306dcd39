"""Write the lab's figures into README.md, docs/lab.md and docs/tide.md, between the markers `lab:begin` and `lab:end`.

    make lab                                            run the report set, then write; takes some minutes
    make lab WHOLE=1                                    the same with three rounds of the set, over night
    python -m tools.lab_page --from FILE [IN_PLACE]     write what one or two runs of the lab have found

In the first run every policy changes size by restart, in the second a few policies do so in place:

    python -m tidegate.lab --set report --ways restart --json FILE
    python -m tidegate.lab --set report --policy tide --policy cost --json IN_PLACE

Each table says which engine version, commit and rounds its figures come from. Files for `--from` must come from the
commit that is checked out.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tidegate.lab.bill import MONTH_SECONDS

ROOT = Path(__file__).parents[1]
README, LAB, TIDE = ROOT / "README.md", ROOT / "docs" / "lab.md", ROOT / "docs" / "tide.md"
BLOCK = re.compile(r"(<!-- lab:begin -->\n).*?(<!-- lab:end -->)", re.DOTALL)
DEFAULT = "tide"
IN_PLACE_POLICIES = (DEFAULT, "cost", "varga", "flip271 (180 s)")
"""The policies of the second run."""
WHOLE_ROUNDS = 3

Row = dict[str, Any]

BY_RESTART = (
    "Each change of size is a restart. `cost` is a multiple of what is attainable by restart, with its standard error "
    "over pairs; slots, lateness and changes are its parts. `late` and `changes of size` are sums over the pairs. "
    "`a month`: the whole cost of one such job in 30 days, if a slot-hour costs 0.05."
)
IN_PLACE = (
    "The same pairs, where the size changes in place, which is Tidegate's normal way. `cost` is a multiple of what is "
    "attainable in place, `of restarting` of what is attainable by restart."
)


def by_policy(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return the outcomes of each policy that ran on every pair, the cheapest policy first."""
    pairs = {row["pair"]["seed"] for row in rows}
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["label"], []).append(row)
    complete = [(label, own) for label, own in found.items() if len(own) == len(pairs)]
    return sorted(complete, key=lambda item: (mean(item[1], "ratio"), item[0]))


def mean(rows: Sequence[Row], figure: str) -> float:
    """Return the mean of a figure."""
    return statistics.fmean(row[figure] for row in rows)


def with_error(rows: Sequence[Row], figure: str = "ratio") -> str:
    """Return a mean with its standard error, or alone if there is only one row."""
    if len(rows) == 1:
        return f"{mean(rows, figure):.2f}"
    error = statistics.stdev(row[figure] for row in rows) / math.sqrt(len(rows))
    return f"{mean(rows, figure):.2f} ± {error:.2f}"


def policy_table(rows: Sequence[Row], slot_hour: float) -> str:
    """Return a row per policy: its cost, the parts of it, the worst pair, seconds late, changes and a month's cost."""
    found = ["| policy | cost | slots | lateness | changes | worst pair | late | changes of size | a month |"]
    found.append("| --- " * 9 + "|")
    for label, own in by_policy(rows):
        parts = " | ".join(
            f"{statistics.fmean(row['parts'][part] for row in own):.2f}" for part in ("slots", "lateness", "changes")
        )
        late, changes = (sum(row[figure] for row in own) for figure in ("late_seconds", "changes"))
        month = mean(own, "slots_per_second") * slot_hour / 3600 * MONTH_SECONDS
        worst = max(row["ratio"] for row in own)
        figures = f"{worst:.2f} | {late:,.0f} s | {changes} | {month:,.0f}"
        found.append(f"| {_name(label)} | {with_error(own)} | {parts} | {figures} |")
    return "\n".join(found)


def group_table(rows: Sequence[Row], title: str, group_of: Callable[[Row], str]) -> str:
    """Return a row per group of pairs: the default policy's cost next to that of the best other one there."""
    found = [f"| {title} | `{DEFAULT}` | worst pair | best other policy | its cost |", "| --- " * 5 + "|"]
    for group in sorted({group_of(row) for row in rows}):
        inside = dict(by_policy([row for row in rows if group_of(row) == group]))
        own = inside.pop(DEFAULT)
        other = next(iter(inside.items()), None)
        shown = "- | -" if other is None else f"{_name(other[0])} | {with_error(other[1])}"
        found.append(f"| {group} | {with_error(own)} | {max(row['ratio'] for row in own):.2f} | {shown} |")
    return "\n".join(found)


def in_place_table(rows: Sequence[Row]) -> str:
    """Return a row per policy: cost over what is attainable in place and by restart, seconds late, changes."""
    found = ["| policy | cost | of restarting | late | changes of size |", "| --- " * 5 + "|"]
    for label, own in by_policy(rows):
        late, changes = (sum(row[figure] for row in own) for figure in ("late_seconds", "changes"))
        restarting = with_error(own, "over_restarting")
        found.append(f"| {_name(label)} | {with_error(own)} | {restarting} | {late:,.0f} s | {changes} |")
    return "\n".join(found)


def _name(label: str) -> str:
    return f"**`{label}`**, the default" if label == DEFAULT else f"`{label}`"


def source(result: dict[str, Any], commit: str) -> str:
    """Return the line that says where the figures come from."""
    rows = result["outcomes"]
    pairs, rounds = ({row["pair"][name] for row in rows} for name in ("seed", "round"))
    (chosen,) = {row["pair"]["set"] for row in rows}
    words = "round" if len(rounds) == 1 else "rounds"
    version = result["engine_version"]
    return f"Set `{chosen}`, {len(rounds)} {words}, {len(pairs)} pairs; engine version {version}, commit `{commit}`."


def with_block(text: str, block: str) -> str:
    """Return a document with its marked block replaced. Raises `ValueError` unless it has exactly one."""
    written, count = BLOCK.subn(lambda found: f"{found[1]}{block}\n{found[2]}", text)
    if count != 1:
        raise ValueError(f"one block between lab:begin and lab:end is needed, found {count}")
    return written


def blocks(restarts: dict[str, Any], in_place: dict[str, Any] | None, commit: str) -> dict[Path, str]:
    """Return each document's block."""
    rows, told = restarts["outcomes"], source(restarts, commit)
    second = "" if in_place is None else f"\n\n{IN_PLACE}\n\n{in_place_table(in_place['outcomes'])}"
    short = [row for row in rows if not row["label"].endswith("(tuned)")]
    costs, defaults = (f"{BY_RESTART}\n\n{policy_table(some, restarts['slot_hour'])}{second}" for some in (rows, short))
    groups = (
        f"By kind of job, by restart:\n\n{group_table(rows, 'kind', lambda row: row['pair']['kind'])}\n\n"
        f"By load, by restart:\n\n{group_table(rows, 'load', lambda row: row['pair']['load'])}"
    )
    return {
        README: f"{defaults}\n\n{told}",
        LAB: f"{costs}\n\n{told}",
        TIDE: f"{groups}\n\n{told}",
    }


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


def lab(*options: str) -> None:
    """Run the lab."""
    subprocess.run([sys.executable, "-m", "tidegate.lab", *options], cwd=ROOT, check=True)


def measured(*options: str) -> dict[str, Any]:
    """Run the lab on the report set and return its outcomes."""
    with tempfile.TemporaryDirectory() as folder:
        scores = Path(folder) / "lab.json"
        lab("--set", "report", "--json", str(scores), *options)
        return read(scores)


def read(path: Path) -> dict[str, Any]:
    """Return the outcomes in a file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the figures into the documents."""
    parser = argparse.ArgumentParser(prog="python -m tools.lab_page", description=__doc__.splitlines()[0])
    parser.add_argument("--whole", action="store_true", help=f"{WHOLE_ROUNDS} rounds of the set instead of one")
    parser.add_argument(
        "--from", dest="scores", type=Path, nargs="+", metavar="FILE", help="one or two files of outcomes, not a run"
    )
    options = parser.parse_args(arguments)
    commit = commit_here()
    in_place: dict[str, Any] | None
    if options.scores:
        restarts = read(options.scores[0])
        in_place = read(options.scores[1]) if options.scores[1:] else None
    else:
        rounds = ("--rounds", str(WHOLE_ROUNDS if options.whole else 1))
        restarts = measured("--ways", "restart", *rounds)
        in_place = measured(*rounds, *(word for policy in IN_PLACE_POLICIES for word in ("--policy", policy)))
        # The pictures show ten readable loads on one job, and how Tidegate changes size.
        lab(*(word for policy in IN_PLACE_POLICIES[:-1] for word in ("--policy", policy)))
    if restarts["ways"] != ["restart"]:
        raise ValueError(f"the first run must be one by restart, found {', '.join(restarts['ways'])}")
    if in_place is not None:
        if in_place["ways"][0] != "in_place":
            raise ValueError(f"the second run must be one in place, found {', '.join(in_place['ways'])}")
        first, second = source(restarts, commit), source(in_place, commit)
        if first != second:
            raise ValueError(f"both runs must be of the same pairs and engine, found {first} and {second}")
    for path, block in blocks(restarts, in_place, commit).items():
        path.write_text(with_block(path.read_text(encoding="utf-8"), block), encoding="utf-8")
    print(f"written: {', '.join(path.name for path in (README, LAB, TIDE))} ({source(restarts, commit)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
