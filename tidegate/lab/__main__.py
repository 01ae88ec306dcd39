"""`python -m tidegate.lab`: policies on the twin, next to a clairvoyant oracle or to what is known to be right.

--set NAME     on the pairs of a set, a kind of job with a load      `_run_set`
--scenarios    on scenarios with a known answer                      `_run_scenarios`
otherwise      on readable workloads and traces, with pictures       `_run_suite`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tidegate.engine.third_party import PolicyFailed
from tidegate.events.way import Way
from tidegate.installed import engine
from tidegate.lab.ablation import settings_of
from tidegate.lab.attain import CACHE
from tidegate.lab.compare import VARIANTS, PairCost, compare, setting_of
from tidegate.lab.compare_table import ablation_table, outcomes_as_json, tables
from tidegate.lab.jobs import lab_model, spec_for
from tidegate.lab.matrix import draw_curves, draw_scores
from tidegate.lab.options import EVERY_WAY, Processes, Since, Speed, Ways, refused
from tidegate.lab.pairs import INTERVAL_SECONDS, OBJECTIVE_SECONDS, Pair, PairSet, pairs
from tidegate.lab.suite import SECONDS, Cell, CellResult, UnknownName, cells, run, spread, trace_loads, ways_of
from tidegate.lab.table import as_json, detail, summary
from tidegate.lab.traces import Playback
from tidegate.lab.trials import figures, settings, trials_table
from tidegate.lab.tunings import tunings
from tidegate.twin.load import BadLoad

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

R = TypeVar("R")

OF_WORKLOADS = frozenset({"workload", "trace", "speed", "since", "hours", "quick", "seed", "scenarios", "out"})
"""Options that say nothing about the pairs of a set."""
OF_SETS = frozenset({"rounds", "kind", "only", "objective", "interval", "pulses", "ablate", "folder"})
"""Options that need `--set`."""
NOT_OF_SCENARIOS = OF_WORKLOADS - {"scenarios"} | OF_SETS | {"ways", "scores"}
"""Options that say nothing about the scenarios with a known answer."""


@app.command()
def lab(
    context: typer.Context,
    policy: Annotated[list[str] | None, typer.Option("--policy", help="Only this policy; repeatable.")] = None,
    workload: Annotated[list[str] | None, typer.Option("--workload", help="Only this workload; repeatable.")] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            "--trace",
            help="CSV (header seconds,records_per_second) as a workload; repeatable. Alone: only traces.",
        ),
    ] = None,
    speed: Speed = 1.0,
    since: Since = 0.0,
    hours: Annotated[
        float | None, typer.Option("--hours", min=0.1, help="Simulated hours per run; default 3, or a trace's length.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One simulated hour each instead of three.")] = False,
    ways: Ways = EVERY_WAY,
    seed: Annotated[int, typer.Option("--seed", help="Seed of all noise.")] = 0,
    processes: Processes = None,
    scenarios: Annotated[
        bool,
        typer.Option("--scenarios", help="Run the scenarios with a known answer instead of workloads."),
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", help="Picture of the scores; the curves go into a second file next to it.")
    ] = Path(".tidegate/lab.png"),
    scores: Annotated[Path | None, typer.Option("--json", help="Write every score to this file.")] = None,
    pair_set: Annotated[
        PairSet | None, typer.Option("--set", help="Run the pairs of this set instead of workloads.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds of the set, 40 pairs each.")] = 1,
    kind: Annotated[list[str] | None, typer.Option("--kind", help="Only this kind of job; repeatable.")] = None,
    only: Annotated[list[str] | None, typer.Option("--load", help="Only this load of the set; repeatable.")] = None,
    objective: Annotated[
        float, typer.Option("--objective", min=1.0, help="Lag objective of the set's jobs, in seconds.")
    ] = OBJECTIVE_SECONDS,
    interval: Annotated[
        int, typer.Option("--interval", min=1, help="Seconds between the snapshots of the set's jobs.")
    ] = INTERVAL_SECONDS,
    pulses: Annotated[
        float,
        typer.Option("--pulses", min=0.0, help="Seconds from pulse to pulse of the set's arrivals; 0: no pulses."),
    ] = 0.0,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="On the set: one policy, by default tide, without each of its mechanisms.")
    ] = False,
    folder: Annotated[Path, typer.Option("--cache", help="Where the plans of the oracle are kept.")] = CACHE,
) -> None:
    """Run policies on workloads on the twin; print and draw their scores next to a clairvoyant oracle's.

    Example:  python -m tidegate.lab --policy tide --policy flip271 --trace taxi.csv --speed 24 --from 48

    Example:  python -m tidegate.lab --set choose --policy tide --policy tide:horizon_seconds=1800 --ways restart
    """
    _refuse_unused(context, pair_set, scenarios=scenarios)
    for option, path in (("--json", scores), ("--out", out)):
        if path is not None and path.is_dir():
            raise refused("tidegate.lab", f"{option}: {path} is a folder")
    if out.suffix.lower() != ".png":
        raise refused("tidegate.lab", f"--out: a picture is a .png, found {out}")
    usual = 1.0 if quick else SECONDS / 3600
    try:
        if pair_set is not None:
            chosen = [
                replace(pair, objective_seconds=objective, interval_seconds=interval, pulse_seconds=pulses)
                for pair in _pairs(pair_set, rounds, kind, only)
            ]
            allowed = ways_of(ways)
            outcomes = _run_set(chosen, policy, allowed, ablate=ablate, folder=folder, processes=processes)
            _write(scores, outcomes_as_json(outcomes, allowed))
            return
        traces = trace_loads(trace or (), Playback(speed=speed, since_hours=since, hours=hours, most_hours=usual))
        allowed, length = ways_of(ways), (hours or usual) * 3600
        todo = cells(policy or (), workload or (), traces=traces, ways=allowed, seconds=length, seed=seed)
        if scenarios:
            _run_scenarios(policy, processes)
            return
        rows = _run_suite(todo, processes)
    except (UnknownName, BadLoad, PolicyFailed) as error:
        raise refused("tidegate.lab", error) from None
    _write(scores, as_json(rows, seed, allowed))
    _draw(rows, out)


def _run_set(
    pairs: Sequence[Pair],
    policies: list[str] | None,
    ways: tuple[Way, ...],
    *,
    ablate: bool,
    folder: Path,
    processes: int | None,
) -> list[PairCost]:
    """Run policies, or one without each of its mechanisms, on the pairs of a set; print what each costs."""
    ablated = " ".join(policies or ["tide"])
    everyone = [*sorted(engine().policies), *(f"{name} (tuned)" for name in tunings()), *VARIANTS]
    chosen = settings_of(ablated) if ablate else [setting_of(text) for text in dict.fromkeys(policies or everyone)]
    compared = compare(pairs, chosen, ways, folder=folder, processes=processes)
    outcomes = _all_of(compared, len(pairs) * len(chosen), "pairs")
    _print(*([ablation_table(ablated, outcomes)] if ablate else tables(outcomes)))
    return outcomes


def _run_scenarios(policies: list[str] | None, processes: int | None) -> None:
    """Run policies on the scenarios with a known answer; print how close each came."""
    rows = settings(policies or sorted(engine().policies))
    found = _all_of(spread(figures, rows, processes=processes), len(rows), "scenarios")
    _print(trials_table(sorted(found, key=lambda row: row.label)))


def _run_suite(todo: list[Cell], processes: int | None) -> list[CellResult]:
    """Run policies on readable workloads and traces; print their scores."""
    found = _all_of(
        spread(run, todo, processes=processes),
        len(todo),
        "simulating",
        lambda row: f"{row.cell.workload} · {row.cell.label}",
    )
    rows = sorted(found, key=lambda row: todo.index(row.cell))
    _print(detail(rows), summary(rows))
    return rows


def _draw(rows: Sequence[CellResult], scores: Path) -> None:
    """Draw the scores, and the curves in a file next to them."""
    objective, curves = spec_for(lab_model()).scaling.lag_objective_seconds, scores.with_stem(f"{scores.stem}-curves")
    draw_scores(rows, scores, objective_seconds=objective)
    draw_curves(rows, curves, objective_seconds=objective)
    Console().print(f"pictures: {scores} (scores), {curves} (curves)", soft_wrap=True)


def _all_of(results: Iterable[R], total: int, text: str, describe: Callable[[R], str] | None = None) -> list[R]:
    """Return all results, with a progress bar that says what has come last."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=total)
        for each in results:
            found.append(each)
            progress.update(task, advance=1, description=text if describe is None else describe(each))
    return found


def _print(*tables: Table) -> None:
    console = Console()
    wide = console if console.is_terminal else Console(width=180)
    for table in tables:
        wide.print(table)


def _write(path: Path | None, scores: dict[str, object]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")


def _pairs(pair_set: PairSet, rounds: int, kinds: list[str] | None, loads: list[str] | None) -> list[Pair]:
    """Return the pairs with one of these kinds and loads; None: any. Raises `UnknownName`."""
    found = pairs(pair_set, range(rounds))
    for what, names, known in (
        ("kind", kinds, {pair.kind for pair in found}),
        ("load", loads, {pair.load for pair in found}),
    ):
        for name in names or ():
            if name not in known:
                raise UnknownName(f"unknown {what} {name!r}, known are {', '.join(sorted(known))}")
    chosen = [pair for pair in found if (not kinds or pair.kind in kinds) and (not loads or pair.load in loads)]
    if not chosen:
        raise UnknownName("no pair has this kind and this load: try more --rounds")
    return chosen


def _refuse_unused(context: typer.Context, pair_set: PairSet | None, *, scenarios: bool) -> None:
    """Exit if an option was given that would do nothing."""
    if pair_set is not None:
        useless, reason = OF_WORKLOADS, "has no meaning with --set"
    elif scenarios:
        useless, reason = NOT_OF_SCENARIOS, "has no meaning with --scenarios"
    else:
        useless, reason = OF_SETS, "needs --set"
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in useless and source is not None and source.name == "COMMANDLINE":
            raise refused("tidegate.lab", f"{option.opts[0]} {reason}")


if __name__ == "__main__":
    app(prog_name="python -m tidegate.lab")
