"""Spec files: every problem is reported with file, line, field and value."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.support.events import job
from tests.support.programs import ROOT
from tidegate.cli.problems import Problem
from tidegate.cli.specfile import load_specs, parse_specs

GOOD = """\
job_id: rates
sources: [in]
application:
  script: /jobs/rates.py
  checkpoint_location: /checkpoints/rates
  event_log_dir: /events
  control_dir: /control
scaling:
  policy: flip271
  min_parallelism: 2
  max_parallelism: 8
  lag_objective_seconds: 20
"""


def aliases(holds: bytes) -> bytes:
    """Return fields of which each holds the one before eight times: the last stands for millions of values."""
    return b"".join(b"a%d: &a%d " % (n, n) + holds % b", ".join([b"*a%d" % (n - 1)] * 8) + b"\n" for n in range(1, 9))


def rejected(text: str) -> str:
    """Return the problem of a text that must be rejected."""
    with pytest.raises(Problem) as caught:
        parse_specs(text, "job.yaml")
    return str(caught.value)


@pytest.mark.parametrize("text", [GOOD.replace("sources", "source"), "---", "just words"])
def test_a_bad_spec_leads_to_pages_that_every_user_has(text: str) -> None:
    """A file of the checkout, which the hint named, is not in the wheel. The first page holds a whole job file."""
    with pytest.raises(Problem) as caught:
        parse_specs(text, "job.yaml")
    small, *others = pages = [ROOT / page for page in re.findall(r"docs/\S+\.md", caught.value.hint)]
    assert others
    assert all(page.is_file() for page in pages)
    assert "deploy/" not in caught.value.hint
    block = re.search(r'```yaml title="job.yaml"\n(.*?)```', small.read_text("utf-8"), re.DOTALL)
    assert block is not None
    assert parse_specs(block[1], "job.yaml")


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"job_id: caf\xe9\n", "byte 11 is not UTF-8"),
        (b"job_id: a\n? [b, c]\n: 1\n", ":2: a field name must be text"),
        (b"job_id: " + 5000 * b"[", "nested too deeply"),
        (b"job_id: a\na0: &a0 [x]\n" + aliases(b"[%s]"), "more than 100,000 values"),
        (b"job_id: a\na0: &a0 {k: 1}\n" + aliases(b"{<<: [%s]}"), "more than 100,000 values"),
    ],
)
def test_what_is_not_a_spec_is_an_error_of_one_line(raw: bytes, named: str, tmp_path: Path) -> None:
    """Latin-1, a list as a field name and endless brackets give a problem with the file's name, no traceback."""
    path = tmp_path / "job.yaml"
    path.write_bytes(raw)
    with pytest.raises(Problem) as caught:
        load_specs(path)
    assert str(caught.value).startswith(str(path))
    assert named in str(caught.value)


def test_a_yaml_spec_becomes_a_job() -> None:
    """A spec in YAML becomes a JobSpec, with the defaults filled in."""
    (spec,) = parse_specs(GOOD, "job.yaml")
    assert (spec.job_id, spec.pipeline_id, spec.scaling.max_parallelism) == ("rates", "rates", 8)
    assert spec.scaling.lag_objective_seconds == 20.0


def test_json_is_read_too() -> None:
    """A spec written as JSON, or dumped as YAML, is read back as the same spec."""
    spec = job(min_parallelism=2)
    assert parse_specs(spec.model_dump_json(), "job.json") == [spec]
    assert parse_specs(yaml.safe_dump(json.loads(spec.model_dump_json())), "job.yaml") == [spec]


def test_several_documents_are_several_jobs() -> None:
    """Each YAML document is one job."""
    text = GOOD + "---\n" + GOOD.replace("job_id: rates", "job_id: other")
    assert [spec.job_id for spec in parse_specs(text, "job.yaml")] == ["rates", "other"]
    around = "# jobs\n---\n" + text + "---\n# no more\n"
    assert parse_specs(around, "job.yaml") == parse_specs(text, "job.yaml")  # empty documents are no jobs


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("min_parallelism: 2", "min_parallelism: -1"), 10, ["scaling.min_parallelism", "found -1"]),
        (("min_parallelism: 2", "min_parallelism: many"), 10, ["scaling.min_parallelism", "found 'many'"]),
        (("min_parallelism: 2", "min_paralelism: 2"), 10, ["scaling.min_paralelism", "did you mean 'min_parallelism'"]),
        (("min_parallelism: 2", "min_parallelism: 9"), 8, ["scaling", "min_parallelism 9 is above max_parallelism 8"]),
        (("script: /jobs/rates.py", "backend: standalone"), 3, ["application.script", "required"]),
        (("job_id: rates", "job_id: ../rates"), 1, ["job_id", "found '../rates'"]),
        (("sources: [in]", "sources: []"), 2, ["sources: needs at least one entry"]),
        (("sources: [in]", "sources: [in, 7]"), 2, ["sources.1", "found 7"]),
        (("policy: flip271", "policy: nosuch"), 9, ["scaling.policy", "nosuch"]),
        (("  policy: flip271", "  guards: {cooldown: {up_secs: 3}}"), 9, ["scaling.guards.cooldown.up_secs"]),
        (("policy: flip271", "policy_options: {headroom: 7}"), 9, ["headroom", "7"]),
        (("lag_objective_seconds: 20", "lag_objective_seconds: .nan"), 12, ["scaling.lag_objective_seconds"]),
    ],
)
def test_a_bad_field_is_reported_with_its_line_and_value(change: tuple[str, str], line: int, words: list[str]) -> None:
    """A bad field is rejected with file, line, path and value."""
    problem = rejected(GOOD.replace(*change))
    assert f"job.yaml:{line}: " in problem
    for word in words:
        assert word in problem


ON_KUBERNETES = GOOD.replace(
    "  control_dir: /control\n",
    "  backend: kubernetes\n  kubernetes: {namespace: jobs, image: spark}\n  executor_memory_mb: 465\n",
)


def test_heaps_that_spark_refuses_in_a_pod_are_refused() -> None:
    """A heap that is large enough elsewhere is not on Kubernetes; the problem says what is."""
    problem = rejected(ON_KUBERNETES)
    assert "job.yaml:9: application.executor_memory_mb: must be at least 466 on Kubernetes, found 465" in problem
    assert "driver_memory_mb" in rejected(ON_KUBERNETES.replace("executor_memory_mb", "driver_memory_mb"))
    assert parse_specs(ON_KUBERNETES.replace("465", "466"), "job.yaml")
    assert parse_specs(GOOD.replace("scaling:", "  executor_memory_mb: 450\nscaling:"), "job.yaml")


def test_every_problem_of_a_file_is_reported_at_once() -> None:
    """Two bad fields give two lines, so nobody has to try twice."""
    problem = rejected(GOOD.replace("max_parallelism: 8", "max_parallelism: x").replace("sources: [in]", "sources: 3"))
    assert "job.yaml:2: sources" in problem
    assert "job.yaml:11: scaling.max_parallelism" in problem


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no spec"),
        ("---\n", "holds no spec"),
        ("- 1\n", "mapping"),
        ("job_id: [", "job.yaml:"),
        ("job_id: a\njob_id: b\n", "job.yaml:2: job_id: appears twice"),
        (GOOD + "---\n" + GOOD, "'rates' appears more than once"),
        ("job_id: !!python/object:os.system x\n", "job.yaml:1"),
    ],
)
def test_what_is_not_a_spec_is_rejected(text: str, words: str) -> None:
    """Empty, broken, duplicate or hostile text gives one clear problem and no traceback."""
    assert words in rejected(text)


@pytest.mark.parametrize("field", ["  script", "  control_dir"])
def test_a_spec_indented_with_tabs_is_told_so(field: str) -> None:
    """The hint for a line that starts with a tab says that YAML wants spaces, whatever YAML makes of the tab."""
    with pytest.raises(Problem) as caught:
        parse_specs(GOOD.replace(field, "\t" + field.strip()), "job.yaml")
    assert "spaces" in caught.value.hint


def test_a_time_in_a_text_field_stays_text() -> None:
    """YAML's conversion of text to dates is off: the field keeps the text."""
    text = GOOD.replace("script: /jobs/rates.py", "script: /jobs/rates.py\n  env: {SINCE: 2026-01-01}")
    assert parse_specs(text, "job.yaml")[0].application.env == {"SINCE": "2026-01-01"}


@pytest.mark.parametrize("indent", ["\t", 2, None])
def test_any_json_is_read(indent: str | int | None) -> None:
    """JSON may be indented by tabs, and has numbers such as 1e-05, as `tidegate jobs --json` prints them."""
    fields = yaml.safe_load(GOOD)
    fields["scaling"]["prices"] = {"currency": "EUR", "slot_hour": 1e-05, "late_minute": 1e16}
    fields["application"]["args"] = ["1e5"]
    (spec,) = parse_specs(json.dumps(fields, indent=indent), "job.json")
    assert spec.scaling.prices is not None
    assert (spec.scaling.prices.slot_hour, spec.scaling.prices.late_minute) == (1e-05, 1e16)
    assert spec.application.args == ("1e5",)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (GOOD.replace("[in]", "[i\x00n]"), "job.yaml:2: the character U+0000"),
        (GOOD.replace("_parallelism: 2", "_parallelism: 0x_"), "job.yaml:10: '0x_'"),
        (GOOD.replace("_parallelism: 8", "_parallelism: " + 5000 * "9"), "job.yaml:11: '999"),
        (GOOD.replace("_parallelism: 8", "_parallelism: !!bool maybe"), "job.yaml:11: 'maybe' is not a value of the"),
    ],
)
def test_no_text_is_more_than_a_problem(text: str, named: str) -> None:
    """A NUL, a number without digits or with too many of them, and a tag that does not fit are named."""
    assert rejected(text).startswith(named)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("job_id: rates", "job_id: Rates!"), ["job.yaml:1: job_id: must be 1 to 63 of a-z 0-9 . _ -"]),
        (GOOD.replace("  script", "  args: [5]\n  script"), ["job.yaml:4: application.args.0: Input should be"]),
        (
            GOOD.replace("  script", "  rescale: [inplace]\n  script"),
            ["job.yaml:4: application.rescale.0: Input should"],
        ),
        (
            GOOD.replace("  script", "  master: mesos://a\n  script"),
            ["job.yaml:4: application.master: must be like spark://"],
        ),
        (GOOD + "  policy_options: {scale_up: .nan}\n", ["job.yaml:13: scaling.policy_options.scale_up: Input should"]),
        (GOOD + "str: 1\n", ["job.yaml:13: str: unknown field"]),
        (GOOD.replace("sources: [in]", "sources: in"), ["job.yaml:2: sources: must be a list, such as [in]"]),
        (
            GOOD.replace("job_id: rates", "job_id: Rates!\nsourcs: 1\ninterval_seconds: soon"),
            ["job.yaml:1: job_id", "job.yaml:2: sourcs: unknown field", "job.yaml:3: interval_seconds"],
        ),
    ],
)
def test_one_bad_value_is_one_problem(text: str, said: list[str]) -> None:
    """What only follows from a bad value is not said besides, and a field with several forms is named once."""
    lines = rejected(text).splitlines()
    assert len(lines) == len(said)
    assert all(line.strip().startswith(start) for line, start in zip(lines, said, strict=True))
