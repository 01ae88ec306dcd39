"""A backtest of event logs of a job whose figures are known: past, twin, comparison, job file."""

from __future__ import annotations

import gc
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time
from unittest.mock import MagicMock

import fsspec
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from tests.support.eventlogs import HERE, recorded, rolling
from tests.support.plain_logs import load, model, write_log
from tidegate.backtest.backtest import Choices, Drawn, JobReport, backtest_load, backtest_runs
from tidegate.backtest.delays import errors, mean_delays
from tidegate.backtest.fitting import _doubts, cold_seconds, fit, submitted_at
from tidegate.backtest.jobfile import told_by
from tidegate.backtest.logs import Logs, Run
from tidegate.backtest.past import CannotBacktest, OffsetCurves, Past, past_of
from tidegate.backtest.picture import scale_delays
from tidegate.backtest.report import as_json, change_rows, headline, options_in_words, result_rows, trust
from tidegate.backtest.search import NOT_SEARCHED, Found, SearchSpace, search
from tidegate.backtest.trial import Replica
from tidegate.cli.main import app
from tidegate.cli.specfile import parse_specs
from tidegate.events.job import Mode, Tariff
from tidegate.events.way import Way
from tidegate.lab.tunings import DEFAULTS, Tuning
from tidegate.launcher.control.files import REHEARSAL
from tidegate.launcher.kubernetes.pods import mebibytes
from tidegate.remote.files import Files
from tidegate.sparklog.parse import parse
from tidegate.twin.load import Load
from tidegate.twin.topic import even


def no_search(_replica: Replica, _seconds: float, _window: float) -> Found:
    """Search nothing."""
    return NOT_SEARCHED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the log of an hour of a job with 3 slots."""
    found = tmp_path_factory.mktemp("events")
    write_log(found / "app-1", load(), model())
    return found


@pytest.fixture(scope="module")
def past(folder: Path) -> Past:
    """Return the past of that job."""
    return past_of("orders", Logs(folder).runs("orders"))


@pytest.fixture(scope="module")
def report(past: Past) -> JobReport:
    """Return its backtest."""
    return backtest_runs("orders", past.runs, Choices(objective_seconds=20.0, max_slots=8), no_search)


def test_arrivals_and_slots_are_those_of_the_load(past: Past) -> None:
    """The load is found again from the offsets of the progress events, and the slots from the executors."""
    found, drawn = past.load(), load()
    late = past.begin - 1_767_225_600
    for minute in range(0, 50, 5):
        begin, end = minute * 60.0, minute * 60.0 + 300.0
        real = drawn.arrived(late + end) - drawn.arrived(late + begin)
        assert found.arrived(end) - found.arrived(begin) == pytest.approx(real, rel=0.05)
    assert past.slots.size(past.begin) == 3
    assert past.slots.slot_seconds(past.begin, past.begin + 100.0) == pytest.approx(300.0)


def test_the_twin_is_found_again(past: Past) -> None:
    """Cost, overhead, noise and trigger of the job that wrote the log are fitted, and the check trusts them."""
    fitted = fit(past)
    assert fitted.model.stages[0].record_cost_seconds == pytest.approx(0.002, rel=0.03)
    assert fitted.model.overhead_seconds == pytest.approx(0.5, abs=0.1)
    assert fitted.model.noise_share == pytest.approx(0.03, abs=0.01)
    assert fitted.model.trigger_interval_seconds == 5.0
    assert fitted.delay is not None
    assert fitted.delay.median < 0.05
    assert fitted.batch is not None
    assert fitted.batch.median < 0.05
    assert fitted.doubts == ()
    assert fitted.model.restart.start_seconds == pytest.approx(22.0)


def test_a_short_past_is_named(tmp_path: Path, past: Past) -> None:
    """A month that is extrapolated from minutes is no forecast, however well the twin fits."""
    write_log(tmp_path / "app-1", load(0.3), model())
    short = past_of("orders", Logs(tmp_path).runs("orders"))
    assert any(remark.startswith("the logs cover only 18 min, ") for remark in fit(short).remarks)
    assert not any("the logs cover only" in remark for remark in fit(past).remarks)


def test_a_job_that_changed_is_not_trusted(tmp_path: Path) -> None:
    """If batches take much longer in the part kept back, the forecast says that it cannot be trusted."""
    write_log(tmp_path / "app-1", load(0.6), model())
    slower, first = model(overhead_seconds=4.0), int(load(0.6).arrived(0.6 * 3600)) // 8
    write_log(tmp_path / "app-2", load(0.3), slower, later=0.6 * 3600 + 60, first=first)
    runs = Logs(tmp_path).runs("orders")
    report = backtest_runs("orders", runs, Choices(), no_search)
    assert report.fit is not None
    assert "the twin's delay is off by" in report.fit.doubts[0]
    assert trust(report).startswith("Do not trust this forecast: on the part kept back")


def test_a_restart_and_a_batch_limit_do_not_confuse_the_fit(tmp_path: Path) -> None:
    """Two runs of a job whose source limits a batch are one past: the twin finds the limit, and repeats the rest."""
    limited, first = model(max_records_per_trigger=6_000), int(load(0.6).arrived(0.6 * 3600)) // 8
    write_log(tmp_path / "app-1", load(0.6), limited)
    write_log(tmp_path / "app-2", load(0.3), limited, later=0.6 * 3600 + 60, first=first)
    fitted = fit(past_of("orders", Logs(tmp_path).runs("orders")))
    assert fitted.model.max_records_per_trigger == 6_000
    assert fitted.delay is not None
    assert fitted.delay.median < 0.1
    assert fitted.doubts == ()


def test_what_was_is_measured_exactly(past: Past) -> None:
    """The delay of the past is the age of the oldest record that is not committed."""
    batches = list(past.batches())
    at, oldest = past.recording(past.begin, past.end).commits[5]
    assert at == pytest.approx(batches[6].ended_at - past.begin)
    # What the seventh batch commits arrived after the sixth one was planned.
    assert oldest == pytest.approx(batches[5].started_at - past.begin, abs=0.1)


def test_tidegate_follows_the_load(report: JobReport) -> None:
    """On 3 slots the job falls behind in each wave; Tidegate grows it and is late for less time."""
    was, would = report.sides
    assert was.label == "what was"
    assert was.whole.changes == 0
    assert was.whole.slot_seconds == pytest.approx(3 * was.whole.seconds, rel=0.02)
    assert would.whole.changes > 0
    assert would.whole.late_seconds < was.whole.late_seconds / 2
    assert would.whole.cost < was.whole.cost
    assert would.kept.seconds == pytest.approx(0.3 * would.whole.seconds, rel=0.05)
    assert change_rows(would, report.replica.epoch)[0][1].startswith("3 -> ")


def test_figures_are_told(report: JobReport) -> None:
    """Rows, headline and JSON hold what was found."""
    assert "above the lag objective instead of" in headline(report)
    assert [row[0] for row in result_rows(report, kept=True)] == ["what was", "tide, defaults"]
    assert options_in_words(report) == "No search was made."
    figures = json.loads(json.dumps(as_json([report], [])))["jobs"][0]
    assert figures["trusted"] is True
    assert figures["sides"][0]["whole"]["slot_seconds"] == pytest.approx(report.sides[0].whole.slot_seconds)


def test_the_job_file_can_be_applied(report: JobReport) -> None:
    """All that the log tells is filled in, the file is a valid spec, and what is missing is named."""
    spec = parse_specs(report.job_file, "job.yaml")[0]
    app = spec.application
    assert (app.script, app.master) == ("/jobs/orders.py", "spark://master:7077")
    assert app.args == ("--input", "orders-in", "--checkpoint", "/data/cp/orders", "--trigger", "5 seconds")
    assert (app.checkpoint_location, app.event_log_dir) == ("/data/cp/orders", "/data/events")
    assert (app.executor_cores, app.executor_memory_mb, app.driver_memory_mb) == (1, 1024, 512)
    assert (app.jars, app.py_files) == (("/jars/kafka.jar",), ("/jobs/lib.py",))
    assert app.conf == {"spark.sql.shuffle.partitions": "16"}
    assert spec.sources == ("orders-in",)
    assert (spec.scaling.mode, spec.scaling.initial_parallelism) == (Mode.ADVISE, 3)
    assert "application.rest_url: the master's REST endpoint, such as http://master:6066" in report.job_file
    assert "application.conf.spark.redis.password: Spark has hidden its value in the log" in report.job_file


def test_a_job_file_without_a_checkpoint_is_refused_until_it_is_filled_in(folder: Path) -> None:
    """A checkpoint that the log does not tell is left out, so `apply` asks for it; nothing is made up."""
    run = Logs(folder).runs("orders")[-1]
    run.command = "org.apache.spark.deploy.SparkSubmit /jobs/orders.py a b c"
    told = told_by(run)
    assert (told.args, told.ambiguous_args, told.checkpoint) == (("a", "b", "c"), True, None)
    text = backtest_runs("orders", [run], Choices(), no_search).job_file
    assert "checkpoint_location:" not in text.split("application:\n")[1]
    assert "#   application.checkpoint_location: see `checkpointLocation`" in text


def test_spark_decodes_the_uri_of_the_event_log_only(folder: Path) -> None:
    """The file has both as paths, which stand for themselves."""
    run = Logs(folder).runs("orders")[-1]
    place = "file:/data/a%20b"
    run.spark = {**run.spark, "spark.eventLog.dir": place, "spark.sql.streaming.checkpointLocation": place}
    told = told_by(run)
    assert (told.event_log_dir, told.checkpoint) == ("/data/a b", "/data/a%20b")


def test_the_job_file_is_for_the_cluster_that_the_job_ran_on(folder: Path) -> None:
    """The log's master gives the backend; what Tidegate needs there besides is filled in, or named."""
    run = Logs(folder).runs("orders")[-1]
    run.spark = {**run.spark, "spark.master": "yarn", "spark.yarn.queue": "fast", "spark.yarn.app.id": "application_1"}
    text = backtest_runs("orders", [run], Choices(), no_search).job_file
    assert "  backend: yarn\n" in text
    assert "spark.yarn.queue: fast" in text
    assert "spark.yarn.app.id" not in text
    assert "application.rest_url: the ResourceManager's web address" in text
    filled = text.replace("  backend: yarn\n", "  backend: yarn\n  rest_url: http://rm:8088\n")
    assert parse_specs(filled, "job.yaml")[0].application.cluster_place == "yarn:http://rm:8088"
    run.spark = {
        **run.spark,
        "spark.master": "k8s://https://10.0.0.1:443",
        "spark.kubernetes.namespace": "streaming",
        "spark.kubernetes.container.image": "shop/spark:4.2.0",
        "spark.kubernetes.executor.request.cores": "500m",
    }
    text = backtest_runs("orders", [run], Choices(), no_search).job_file
    app = parse_specs(text, "job.yaml")[0].application
    assert app.kubernetes is not None
    assert (app.backend, app.kubernetes.namespace, app.kubernetes.image) == (
        "kubernetes",
        "streaming",
        "shop/spark:4.2.0",
    )
    assert app.control_place == "configmap:streaming"
    assert app.conf["spark.kubernetes.executor.request.cores"] == "500m"
    assert "spark.kubernetes.namespace" not in app.conf
    assert "rest_url" not in text
    run.spark = {name: value for name, value in run.spark.items() if "image" not in name}
    text = backtest_runs("orders", [run], Choices(), no_search).job_file
    assert "#   application.kubernetes.image: of driver and executors" in text
    assert "untold" not in text


@pytest.mark.parametrize(("text", "expected"), [("1g", 1024), ("512m", 512), ("2048k", 2), ("300M", 300), ("?", 1024)])
def test_sizes_of_memory_are_read(text: str, expected: int) -> None:
    """Sizes are in MiB, as Spark writes them."""
    assert mebibytes(text, 1024) == expected


def test_options_that_do_not_last_are_not_proposed(past: Past) -> None:
    """Options that are cheaper on the first part but not on the rest are named, and the defaults are proposed."""

    def bad(_replica: Replica, _seconds: float, _window: float) -> Found:
        return Found(Tuning({}, {"cooldown": {"up_seconds": 3000.0}}), (), 10, 0.1)

    report = backtest_runs("orders", past.runs, Choices(objective_seconds=20.0, max_slots=8), bad)
    assert not report.accepted
    assert report.proposed.label == "tide, defaults"
    assert report.spec.scaling.guards == {}
    assert "So the defaults are proposed." in options_in_words(report)


def test_prices_make_it_money(past: Past) -> None:
    """With prices the cost is what a month like it would cost."""
    prices = Tariff(currency="EUR", slot_hour=0.1, late_minute=1.0)
    report = backtest_runs("orders", past.runs, Choices(objective_seconds=20.0, max_slots=8, prices=prices), no_search)
    was = report.sides[0].whole
    month = 30 * 24
    late = was.late_seconds / was.seconds * month * 60
    assert was.cost == pytest.approx(0.1 * was.slot_hours_a_month + late, rel=0.01)
    assert result_rows(report, kept=False)[0][-1].endswith("EUR a month")


def test_a_drawn_load_is_compared_with_a_constant_size() -> None:
    """Without a past, the constant size that keeps up with the peak is what Tidegate is compared with."""
    drawn = Drawn("load", Load([200.0] * 360 + [1500.0] * 360), model(), even(8), None)
    report = backtest_load(drawn, Choices(), no_search)
    assert report.sides[0].label == "always 4 slots"
    small = Drawn("load", Load([1.0] * 720), model(), even(8), None)
    assert backtest_load(small, Choices(), no_search).sides[0].label == "always 1 slot"
    assert report.proposed.whole.slot_seconds < report.sides[0].whole.slot_seconds
    assert "sources: the topics that it reads" in report.job_file


def test_the_job_file_of_a_drawn_load_names_all_that_is_missing() -> None:
    """Filled in as its comments say, it can be applied."""
    text = backtest_load(Drawn("load", Load([1.0] * 720), model(), even(8), None), Choices(), no_search).job_file
    fields = [
        line.split(":")[0].split()[1].partition(".")[2] for line in text.splitlines() if "#   application." in line
    ]
    known = "".join(f"  {name}: /x\n" for name in fields if name != "master,")
    (spec,) = parse_specs(text.replace("application:\n", f"sources: [in]\napplication:\n{known}"), "job.yaml")
    assert spec.application.control_dir == "/x"
    assert "master, rest_url and master_ui_url" in text


def test_a_drawn_load_takes_a_proposed_job_file(report: JobReport) -> None:
    """A job file that only advises is tried as if it acted, with its own policy and sizes."""
    spec = parse_specs(report.job_file, "job.yaml")[0]
    drawn = Drawn("load", Load([200.0] * 360 + [1500.0] * 360), model(), even(8), spec)
    again = backtest_load(drawn, Choices(), no_search)
    assert again.proposed.whole.changes > 0
    assert again.spec.scaling.mode is Mode.ADVISE
    assert again.spec.application.script == spec.application.script


def test_a_drawn_load_keeps_to_the_deadlines_of_its_spec(report: JobReport) -> None:
    """A start that must be done sooner than any start is cannot succeed."""
    spec = parse_specs(report.job_file, "job.yaml")[0]
    hurried = spec.application.model_copy(update={"rescale": (Way.RESTART,), "start_deadline_seconds": 5})
    late = []
    for each in (spec, spec.model_copy(update={"application": hurried})):
        drawn = Drawn("load", Load([200.0] * 360 + [1500.0] * 360), model(), even(8), each)
        late.append(backtest_load(drawn, Choices(), no_search).proposed.whole.late_seconds)
    assert late[1] > 3 * late[0]


def test_logs_elsewhere_are_read_the_same(folder: Path) -> None:
    """A folder that is not on this machine gives the same runs."""
    for file in folder.iterdir():
        fsspec.filesystem("memory").pipe_file(f"/backtest/{file.name}", file.read_bytes())
    assert Logs(Files().place("memory://backtest")).runs("orders") == Logs(folder).runs("orders")


def test_logs_that_cannot_be_used_are_named(folder: Path, tmp_path: Path) -> None:
    """A text, a codec that cannot be read, a damaged file and a job without batches are left out; the others go on."""
    (tmp_path / "app-1").write_bytes((folder / "app-1").read_bytes())
    (tmp_path / "notes.txt").write_text("nothing\n" * 50)
    (tmp_path / "app-2.lz4").write_bytes(b"x")
    (tmp_path / "app-3.zstd").write_bytes(b"not zstd at all")
    (tmp_path / "app-4").write_bytes(b"".join(line for line in recorded() if b"QueryProgress" not in line))
    logs = Logs(tmp_path)
    assert logs.names == ["orders", "recorded"]
    assert len(logs.runs("orders")) == 1
    assert logs.runs("recorded") == ()
    why = {each.name: each.why for each in logs.left_out}
    assert "not Spark events" in why["notes.txt"]
    assert "only plain and zstd logs" in why["app-2.lz4"]
    assert "damaged" in why["app-3.zstd"]
    assert why["app-4"] == "no micro-batch of a streaming query ended"


def test_the_runs_of_one_job_at_a_time_are_in_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day of 100 jobs has millions of batches: those of others are not read yet, or let go."""
    log = (folder / "app-1").read_text("utf-8")
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(log.replace('"orders"', f'"{name}"'), "utf-8")
    backtested, held = [], []

    def batches_of() -> set[str]:
        return {each.log for each in gc.get_objects() if isinstance(each, Run) and each.batches} & {"a", "b", "c"}

    def parsed(line: bytes, kinds: frozenset[bytes]) -> object:
        if b"SparkListenerApplicationEnd" in line:
            held.append(batches_of())
        return parse(line, kinds)

    def counted(name: str, runs: Sequence[Run], *_more: object) -> JobReport:
        assert [run.name for run in runs] == [name]
        backtested.append(batches_of())
        raise CannotBacktest("only counted")

    monkeypatch.setattr("tidegate.backtest.logs.parse", parsed)
    monkeypatch.setattr("tidegate.cli.backtest.backtest_runs", counted)
    ran = CliRunner().invoke(app, ["backtest", str(tmp_path), "--trials", "0"])
    assert ran.exit_code == 1, ran.output
    assert backtested == held == [{"a"}, {"b"}, {"c"}]


def test_a_log_whose_application_has_ended_since_is_found_under_its_final_name(folder: Path, tmp_path: Path) -> None:
    """Spark renames it, and the backtests of the jobs before may take hours."""
    log = tmp_path / "app-1.inprogress"
    log.write_bytes((folder / "app-1").read_bytes())
    logs = Logs(tmp_path)
    log.rename(tmp_path / "app-1")
    assert len(logs.runs("orders")) == 1


def test_a_report_keeps_only_the_decisions_that_change_the_size(report: JobReport) -> None:
    """The others are nine tenths of its memory, and the reports of all jobs wait for the page."""
    for side in report.sides:
        assert all(decision.command is not None for decision in side.recording.decisions)
    assert len(report.proposed.recording.decisions) == report.proposed.whole.changes


def test_a_real_log_of_plain_spark_submit(tmp_path: Path) -> None:
    """From a real log come the job file, what new executors cost, and a twin near the real batches."""
    (tmp_path / "app-1.zstd").write_bytes((HERE / "plain.zstd").read_bytes())
    runs = Logs(tmp_path).runs("orders")
    report = backtest_runs("orders", runs, Choices(objective_seconds=15.0, max_slots=6), no_search)
    spec = parse_specs(report.job_file, "job.yaml")[0]
    assert spec.application.script == "/app/examples/rates.py"
    assert spec.application.args[-4:] == ("--record-ms", "2", "--trigger", "2 seconds")
    assert spec.application.conf == {"spark.ui.enabled": "false"}
    assert (spec.application.checkpoint_location, spec.sources) == ("/data/checkpoint", ("orders-in",))
    assert "application.jars: Spark has hidden its value in the log" in report.job_file
    model = report.replica.model
    assert model.stages[0].record_cost_seconds == pytest.approx(0.0022, rel=0.2)  # 2 ms of sleep, and the rest
    assert report.fit is not None
    assert any("the trigger interval is not known" in remark for remark in report.fit.remarks)
    assert 3.0 < model.in_place.register_seconds < 30.0
    assert 3.0 < model.in_place.first_batch_seconds < 40.0
    assert report.proposed.whole.changes > 0


def test_rolled_compressed_and_running_logs_are_read(tmp_path: Path) -> None:
    """A rolling zstd log is one run, whether or not its application has ended."""
    lines = recorded()
    rolling(tmp_path, lines[:60], codec=".zstd")
    rolling(tmp_path, lines[60:-1], index=2, codec=".zstd")
    run = Logs(tmp_path).runs("recorded")[0]
    assert (len(run.batches), run.ended_at, run.compacted) == (5, None, False)
    assert [slots for _, slots in run.slots()] == [0, 1, 2]


def test_a_line_that_is_made_to_take_hours_takes_none(tmp_path: Path) -> None:
    """Whoever writes a log cannot keep a backtest busy: a line like a task, without an end, is passed over at once."""
    lines = [line.decode() for line in recorded()]
    hostile = '{"Event":"SparkListenerTaskEnd"' + '"Task End Reason":{"Reason":"Success"}' * 250
    lines.insert(-1, hostile + '"Launch Time":1,"Executor ID":"1"' * 250 + "\n")
    (tmp_path / "app-1").write_text("".join(lines))
    logs = Logs(tmp_path)
    began = process_time()
    assert len(logs.runs("recorded")[0].batches) == 5
    assert process_time() - began < 2.0


def test_a_source_that_is_not_kafka_is_named(tmp_path: Path) -> None:
    """A job without Kafka offsets is left out, with what it reads."""
    changed = []
    for line in recorded():
        event = json.loads(line)
        if "progress" in event:
            event["progress"]["sources"] = [{"description": "RateStream", "numInputRows": 5, "endOffset": 3}]
        changed.append(json.dumps(event, separators=(",", ":")))
    (tmp_path / "app-1").write_text("\n".join(changed))
    logs = Logs(tmp_path)
    assert logs.runs("recorded") == ()
    assert logs.left_out[0].why == "its sources are not Kafka topics, but RateStream"


def test_too_few_batches_are_refused(tmp_path: Path) -> None:
    """Without enough batches there is no forecast, and the reason says how many there were."""
    rolling(tmp_path, recorded())
    with pytest.raises(CannotBacktest, match="5 micro-batches ended, and at least 20 are needed"):
        past_of("recorded", Logs(tmp_path).runs("recorded"))


def test_times_before_a_long_stop_are_left_out(tmp_path: Path) -> None:
    """Runs with more than an hour between them are not one past: the longest is taken, and it is said."""
    write_log(tmp_path / "app-1", load(0.5), model())
    write_log(tmp_path / "app-2", load(1.0), model(), later=3 * 3600)
    past = past_of("orders", Logs(tmp_path).runs("orders"))
    assert len(past.runs) == 1
    assert past.seconds == pytest.approx(3600, rel=0.05)
    assert "1 of 2 runs are left out" in past.remarks[0]


def _with_another_query(log: Path, name: str, *, ends: bool) -> None:
    """Add a query that reads the first batch of a log as well, under a name, and then nothing more."""
    lines = log.read_text().splitlines(keepends=True)
    started = next(number for number, line in enumerate(lines) if "QueryStartedEvent" in line)
    batch = next(number for number, line in enumerate(lines) if "QueryProgressEvent" in line)
    start = lines[started].replace("query-1", "other").replace("}", f',"name":"{name}"}}')
    ended = lines[started].replace("QueryStartedEvent", "QueryTerminatedEvent").replace("query-1", "other")
    end = [ended] if ends else []
    lines[batch + 1 : batch + 1] = [start, lines[batch].replace("query-1", "other"), *end]
    log.write_text("".join(lines))


@pytest.mark.parametrize(("name", "ends"), [(f"{REHEARSAL}-1", False), ("once", True)])
def test_a_query_that_has_ended_holds_no_offset_back(folder: Path, tmp_path: Path, name: str, ends: bool) -> None:
    """Nor does the rehearsal of a handover, which is no query of the job at all."""
    log = tmp_path / "app-1"
    log.write_text((folder / "app-1").read_text())
    known = past_of("orders", Logs(tmp_path).runs("orders"))
    _with_another_query(log, name, ends=ends)
    found = past_of("orders", Logs(tmp_path).runs("orders"))
    assert found.commits[-1] == known.commits[-1]
    assert len(list(found.batches())) == len(list(known.batches())) + ends


def test_a_query_with_a_new_checkpoint_replaces_the_old_one(tmp_path: Path) -> None:
    """Its id is another one, and the old one reads no more; one query at a time shares its slots with none."""
    write_log(tmp_path / "app-1", load(0.6), model())
    first = int(load(0.6).arrived(0.6 * 3600)) // 8
    log = tmp_path / "app-2"
    write_log(log, load(0.3), model(), later=0.6 * 3600 + 60, first=first)
    log.write_text(log.read_text().replace("query-1", "query-2"))
    past = past_of("orders", Logs(tmp_path).runs("orders"))
    assert min(past.commits[-1].offsets) > first
    assert not any("share the slots" in doubt for doubt in _doubts(past, None, None))


def test_jobs_are_told_apart_by_name(folder: Path, tmp_path: Path) -> None:
    """Each application name is a job of its own."""
    (tmp_path / "app-1").write_bytes((folder / "app-1").read_bytes())
    write_log(tmp_path / "app-2", load(0.3), model(), name="billing")
    assert Logs(tmp_path).names == ["billing", "orders"]


def test_of_many_applications_only_the_one_asked_for_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of 1,000 applications has logs of a gigabyte each: of the others, the names are enough."""
    taken: Counter[bool] = Counter()

    def counted(line: bytes, kinds: frozenset[bytes]) -> object:
        taken[b"QueryProgressEvent" in line] += 1
        return parse(line, kinds)

    (tmp_path / "app-1").write_bytes((folder / "app-1").read_bytes())
    for number in range(2, 12):
        write_log(tmp_path / f"app-{number}", load(0.2), model(), name=f"job-{number}")
    monkeypatch.setattr("tidegate.backtest.logs.parse", counted)
    Logs(folder).runs("orders")
    batches = taken[True]
    taken.clear()
    words = ["backtest", str(tmp_path), "--job", "orders", "--trials", "0"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert taken[True] == batches
    taken.clear()
    ran = CliRunner().invoke(app, ["backtest", str(tmp_path), "--job", "order"])
    assert "there are: job-10, job-11" in ran.output
    assert not taken[True]


@pytest.mark.parametrize(
    ("name", "job_id"),
    [
        ("StructuredKafkaWordCount", "structuredkafkawordcount"),
        ("Orders v1 (EU)", "orders-v1-eu"),
        ("_orders..eu_", "orders-eu"),
        ("заказы", "job"),
        (64 * "x", 63 * "x"),
    ],
)
def test_an_application_may_have_any_name(folder: Path, name: str, job_id: str) -> None:
    """Spark takes any; the id in the job file is as near to it as an id may be. A CSV may have any name, too."""
    run = Logs(folder).runs("orders")[-1]
    run.name = name
    report = backtest_runs(name, [run], Choices(), no_search)
    assert (report.name, report.spec.job_id) == (name, job_id)
    drawn = Drawn(name, Load([1.0] * 720), model(), even(8), None)
    assert backtest_load(drawn, Choices(), no_search).spec.job_id == job_id


def test_applications_of_similar_names_get_job_files_of_their_own(tmp_path: Path) -> None:
    """Names that differ only in what no id may hold do not overwrite each other's job file."""
    (tmp_path / "events").mkdir()
    for place, name in enumerate(("Orders", "orders", "orders-2")):
        write_log(tmp_path / "events" / f"app-{place}", load(0.2), model(), name=name)
    files = tmp_path / "jobs"
    words = ["backtest", str(tmp_path / "events"), "--trials", "0", "--job-file", str(files)]
    assert CliRunner().invoke(app, words).exit_code == 0
    found = {file.stem: parse_specs(file.read_text("utf-8"), file.name)[0].job_id for file in files.iterdir()}
    assert found == {name: name for name in ("orders", "orders-2", "orders-2-2")}


def test_a_job_on_one_local_core_is_backtested(folder: Path) -> None:
    """Spark takes the master `local` for `local[1]`, and so does the job file."""
    run = Logs(folder).runs("orders")[-1]
    run.spark = {**run.spark, "spark.master": "local"}
    application = backtest_runs("orders", [run], Choices(), no_search).spec.application
    assert (application.backend, application.master) == ("local", "local[1]")


def test_an_application_that_no_spec_can_describe_costs_the_others_nothing(tmp_path: Path) -> None:
    """It is left out by name, with the field and its value, and not taken for a setting of the command."""
    write_log(tmp_path / "app-1", load(0.2), model())
    write_log(tmp_path / "app-2", load(0.2), model(), name="billing")
    log = tmp_path / "app-2"
    log.write_text(log.read_text("utf-8").replace('executor.memory":"1g"', 'executor.memory":"2048t"'), "utf-8")
    ran = CliRunner().invoke(app, ["backtest", str(tmp_path), "--trials", "0"])
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert "left out: billing: executor_memory_mb: " in ran.stdout
    assert ", found 2147483648\n" in ran.stdout
    assert ran.stdout.startswith("orders: ")


def test_a_search_on_a_part_that_costs_nothing_proposes_the_defaults(report: JobReport) -> None:
    """A job that holds no slot while no record waits costs nothing at night: no setting can be cheaper."""

    class Free(SearchSpace):
        def costs(self, tunings: Sequence[Tuning], told: Callable[[int], None]) -> list[float]:
            told(len(tunings))
            return [0.0 for _ in tunings]

    found = search(Free(MagicMock(), report.replica, 100.0, 30.0), 10)
    assert (found.tuning, found.matters, found.gain) == (DEFAULTS, (), 0.0)


def test_a_source_that_does_not_tell_its_end_offsets_may_be_next_to_one_that_does(folder: Path, tmp_path: Path) -> None:
    """Its end offsets are taken to be those that each batch read up to."""
    lines = []
    for line in (folder / "app-1").read_text("utf-8").splitlines():
        event = json.loads(line)
        if "progress" in event:
            more = {"startOffset": {"fx": {"0": 5}}, "endOffset": {"fx": {"0": 5}}, "latestOffset": None}
            event["progress"]["sources"].append({"description": "KafkaV2[Subscribe[fx]]", "numInputRows": 0, **more})
        lines.append(json.dumps(event, separators=(",", ":")))
    (tmp_path / "app-1").write_text("\n".join(lines), "utf-8")
    run = Logs(tmp_path).runs("orders")[-1]
    assert backtest_runs("orders", [run], Choices(), no_search).spec.sources == ("fx", "orders-in")
    assert run.batches[-1].latest["fx"] == {0: 5}
    assert run.batches[-1].latest["orders-in"] == Logs(folder).runs("orders")[-1].batches[-1].latest["orders-in"]


def test_a_past_of_decades_is_refused(folder: Path) -> None:
    """One batch from before the machine's clock was set would make it: it would take memory and time without end."""
    run = Logs(folder).runs("orders")[-1]
    run.batches[0] = replace(run.batches[0], started_at=60.0)
    with pytest.raises(CannotBacktest, match=r"from 1970-01-01 to .* a year, is not played: was a clock wrong"):
        past_of("orders", [run])


@pytest.mark.parametrize("text", ["", "soon", "²", "9" * 5000])
def test_a_submission_at_no_time_is_the_start(folder: Path, text: str) -> None:
    """Anyone may set `spark.app.submitTime`; what is no time is as good as not set."""
    run = Logs(folder).runs("orders")[-1]
    run.spark = {**run.spark, "spark.app.submitTime": text}
    assert submitted_at(run) == run.started_at


def test_two_logs_of_one_run_count_once(folder: Path, tmp_path: Path) -> None:
    """Of a copy that was made while the application ran, and the whole log, the copy is left out by name."""
    whole = (folder / "app-1").read_bytes()
    for name, raw in (("a.copy", whole[: len(whole) // 2]), ("app-1", whole), ("z.copy", whole[: len(whole) // 2])):
        (tmp_path / name).write_bytes(raw)
    logs = Logs(tmp_path)
    assert [run.log for run in logs.runs("orders")] == ["app-1"]
    assert {(each.name, each.why) for each in logs.left_out} == {
        ("a.copy", "it is of the same run as app-1"),
        ("z.copy", "it is of the same run as app-1"),
    }


def test_offsets_in_between_are_even() -> None:
    """Between two looks, records arrive evenly; the oldest record not committed is found by that."""
    curves = OffsetCurves({("t", 0): [(0.0, 0), (10.0, 100)], ("t", 1): [(0.0, 50), (5.0, 50), (10.0, 60)]})
    assert curves.ends(5.0) == [50.0, 50.0]
    assert curves.oldest_at([20.0, 50.0], 0.0) == pytest.approx(2.0)
    assert curves.oldest_at([100.0, 50.0], 0.0) == pytest.approx(5.0)
    assert curves.oldest_at([100.0, 60.0], 0.0) == float("inf")
    assert curves.oldest_at([20.0, 40.0], 1.0) == 1.0


def test_a_cold_executor_is_known_by_its_first_tasks() -> None:
    """What the first tasks take longer than later ones, beyond their records, is how cold an executor was."""
    warm = [(0.1 + 0.002 * records, records) for records in range(100, 300, 10)]
    assert cold_seconds([(6.3, 100), (1.3, 100), *warm], 0.002) == pytest.approx(7.0)
    assert cold_seconds(warm, 0.002) == pytest.approx(0.0)
    assert cold_seconds(warm[:10], 0.002) is None


def test_mean_delays_are_exact() -> None:
    """A delay that rises from 2 s to 12 s, and is then 0, has a mean of 7 s and of 0 s."""
    assert mean_delays([(10.0, -2.0), (20.0, 30.0)], 20.0, 10.0) == pytest.approx([7.0, 0.0])
    off = errors([11.0, 5.0, 0.5], [10.0, 10.0, 0.1])
    assert off is not None
    assert off.points == 2
    assert off.median == pytest.approx(0.3)
    assert Tuning({}, {}) == DEFAULTS


def damaged_line(number: int) -> bytes:
    """Return a line of a log that was damaged on disk, in one of several ways."""
    query = {"id": "q", "batchId": 1, "timestamp": "9999-12-31T23:59:59Z", "sources": []}
    progress = b'{"Event":"org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent","progress":%s}'
    task = (
        b'{"Event":"SparkListenerTaskEnd","Task End Reason":{"Reason":"Success"},"Launch Time":1,"Executor ID":"\xe9"'
    )
    plan = b'{"Event":"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"'
    lines = [
        task + b',"Finish Time":2}',
        plan + b',"p":"checkpoint = /ck/\xe9/state"}',
        progress % json.dumps({**query, "durationMs": {"triggerExecution": 10**6}}).encode(),
        progress % json.dumps({**query, "durationMs": {"triggerExecution": 10**20}}).encode(),
        progress % json.dumps({**query, "id": [1], "durationMs": {"triggerExecution": 1}}).encode(),
        b'{"Event":"SparkListenerExecutorAdded","Timestamp":1,"Executor ID":[1],"Executor Info":{"Total Cores":1}}',
        b'{"Event":"SparkListenerEnvironmentUpdate","Spark Properties":{"spark.jars":null}}',
    ]
    return lines[number]


@pytest.mark.parametrize("number", range(7))
def test_a_damaged_line_costs_the_other_logs_nothing(folder: Path, tmp_path: Path, number: int) -> None:
    """A line that is damaged in any way is one broken line: the log is still read, and so are the others."""
    lines = (folder / "app-1").read_bytes().split(b"\n")
    (tmp_path / "app-1").write_bytes(b"\n".join(lines))
    other = [line.replace(b'"App ID":"', b'"App ID":"other-') for line in lines]
    (tmp_path / "app-2").write_bytes(b"\n".join([*other[:4], damaged_line(number), *other[4:]]))
    logs = Logs(tmp_path)
    assert len(logs.runs("orders")) == 2
    assert logs.left_out == []


def test_settings_that_spark_has_hidden_are_taken_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    """With a wide `spark.redaction.regex`, cores are hidden in the log: then those of its executors count."""
    hidden = b'"spark.task.cpus":"*********(redacted)","spark.executor.cores":"*********(redacted)"'
    log = (folder / "app-1").read_bytes()
    (tmp_path / "app-1").write_bytes(re.sub(rb'"spark\.executor\.cores": ?"1"', hidden, log))
    (run,) = Logs(tmp_path).runs("orders")
    assert run.spark["spark.executor.cores"].startswith("***")
    assert told_by(run).executor_cores == 1
    assert run.slots()[-1][1] >= 0


def test_links_to_nowhere_cost_the_other_logs_nothing(folder: Path, tmp_path: Path) -> None:
    """A rolled log with a file that is gone, and a circle of links, are left out by name; the others go on."""
    (tmp_path / "app-1").write_bytes((folder / "app-1").read_bytes())
    (tmp_path / "eventlog_v2_app-2").mkdir()
    (tmp_path / "eventlog_v2_app-2" / "events_1_app-2").symlink_to(tmp_path / "gone")
    (tmp_path / "app-3").symlink_to(tmp_path / "app-3")
    logs = Logs(tmp_path)
    assert logs.names == ["orders"]
    assert [each.name for each in logs.left_out] == ["app-3", "eventlog_v2_app-2"]


def test_a_partition_that_is_new_in_the_last_batch_is_known(folder: Path) -> None:
    """Such a partition has no start in the log, only an end."""
    (run,) = Logs(folder).runs("orders")
    last = run.batches[-1]
    grown = {topic: {**ends, 99: 5} for topic, ends in last.end.items()}
    batches = [*run.batches[:-1], replace(last, end=grown, latest=grown)]
    assert past_of("orders", [replace(run, batches=batches)]).commits[-1].offsets[-1] == 5.0


@pytest.mark.parametrize(
    ("objective", "told"), [(30.0, ["0", "15", "30", "45", "100"]), (1.0, ["0", "2.5", "5", "7.5", "10", "20"])]
)
def test_the_axis_of_delays_has_plain_numbers(objective: float, told: list[str]) -> None:
    """Seconds are read, not worked out from powers of ten."""
    panel = Figure().subplots()
    panel.plot([0.0, 1.0, 2.0], [3.0, 60.0, 150.0])
    scale_delays(panel, objective)
    panel.figure.canvas.draw()
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert labels[: len(told)] == told
    assert all(re.fullmatch(r"[\d,.]+", label) for label in labels)
    assert panel.get_ylim()[1] < 300.0
