"""The JSON Schema of the job file accepts and refuses what `tidegate apply` does, so an editor can be trusted."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from tests.support.engine import OURS, check_spec
from tidegate.engine.guards import GUARDS
from tidegate.events.job import JobSpec
from tools.job_file import job_file_schema

ROOT = Path(__file__).parents[2]
EXAMPLE = yaml.safe_load((ROOT / "deploy" / "examples" / "job.yaml").read_text("utf-8"))
SCHEMA = Draft202012Validator(job_file_schema())
BEYOND_JSON_SCHEMA = (
    r"min_parallelism \d+ is above max_parallelism",
    r"initial_parallelism \d+ is outside",
    r"must be multiples of executor_cores",
    r"script '.*' is a jar: name the class",
    r"backend '\w+' (needs|takes no|does not fit) ",
    r"volume '.*' needs either claim or host_path",
    r"main_class '.*' (needs its jar|takes no py_files|cannot be handed over)",
    r"state_limits\.hard_gb: must be at least soft_gb",
    r"excluded_periods\.periods: ",
    r"schedule\.at_least: ",
    r"policy_options\.(utilization_max|utilization_min): ",
    r"policy_options\.(scaling_up_ratio|scaling_down_ratio|allow_idle_consumers|cron|up_policies|down_policies): ",
    r"requested_at: ",
)
"""Problems that only `tidegate apply` finds: rules that span several fields, and texts with their own grammar."""

OWNERS = [("policy", policy.name, policy.Options) for policy in OURS] + [("guard", g.name, g) for g in GUARDS]
OPTIONS = [(kind, name, field.name) for kind, name, options in OWNERS for field in fields(options)]


def refused(document: Any) -> list[str]:
    """Return why `tidegate apply` refuses a document; empty if it takes it."""
    try:
        spec = JobSpec.model_validate_json(json.dumps(document))
    except ValidationError as error:
        return [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
    return [problem for text in check_spec(spec) for problem in re.split(r"; (?=scaling\.)", text)]


def agree(document: Any) -> None:
    """Fail unless the schema and `tidegate apply` judge a document alike, except where JSON Schema cannot."""
    problems = refused(document)
    found = [f"{error.json_path}: {error.message}" for error in SCHEMA.iter_errors(document)]
    assert problems or not found, found
    beyond = all(any(re.search(rule, problem) for rule in BEYOND_JSON_SCHEMA) for problem in problems)
    assert found or beyond, problems


def changed(path: tuple[str, ...], value: Any) -> Any:
    """Return the example with one field set."""
    document = copy.deepcopy(EXAMPLE)
    place = document
    for part in path[:-1]:
        place = place.setdefault(part, {})
    place[path[-1]] = value
    return document


def test_the_examples_are_taken_by_both() -> None:
    """Every job file of the repository is valid for an editor and for `tidegate apply`."""
    files = [*(ROOT / "deploy" / "examples").glob("*.yaml"), *(ROOT / "deploy" / "examples").glob("*.json")]
    assert {file.name for file in files} == {"job.yaml", "demo.json", "main-class.yaml"}
    for file in files:
        for document in yaml.safe_load_all(file.read_text("utf-8")):
            assert refused(document) == [], file
            assert list(SCHEMA.iter_errors(document)) == [], file


def test_the_schema_is_a_schema() -> None:
    """It is valid by its own draft, and each option has a description."""
    made = job_file_schema()
    Draft202012Validator.check_schema(made)
    for kind, name, option in OPTIONS:
        assert made["$defs"][f"{kind}-{name}"]["properties"][option]["description"], (kind, name, option)


def test_a_former_name_is_taken_by_both_unless_the_new_one_is_given_too() -> None:
    """Files written before an option was renamed stay valid for an editor and for `tidegate apply`."""
    for options, valid in (
        ({"mend_pending_overflow": True}, True),
        ({"fix_pending_overflow": True}, True),
        ({"mend_pending_overflow": True, "fix_pending_overflow": True}, False),
        ({"mend_pending_overflow": 2.0}, False),
    ):
        document = changed(("scaling", "policy"), "numaflow")
        document["scaling"]["policy_options"] = options
        assert (refused(document) == []) is valid, options
        assert (list(SCHEMA.iter_errors(document)) == []) is valid, options


@pytest.mark.parametrize("policy", OURS, ids=lambda policy: policy.name)
def test_defaults_may_be_written_out(policy: Any) -> None:
    """A file that spells out every default is valid; so is one that leaves the policy out."""
    guards = {g.name: {f.name: f.default for f in fields(g) if f.default is not None} for g in GUARDS}
    options = {f.name: f.default for f in fields(policy.Options) if f.default is not None}
    document = changed(("scaling",), {"policy": policy.name, "policy_options": options, "guards": guards})
    assert refused(document) == []
    assert list(SCHEMA.iter_errors(document)) == []
    del document["scaling"]["policy"]
    agree(document)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("scaling", "policy"), "nonesuch"),
        (("scaling", "policy_options"), {"nonesuch": 1}),
        (("scaling", "policy_options"), {"utilization_target": 0.7}),  # of another policy
        (("scaling", "guards"), {"cooldwon": {}}),
        (("scaling", "guards"), {"cooldown": {"seconds": 1}}),
        (("scaling", "guards"), {"cooldown": None}),
        (("scaling", "guards"), {"steps": {"up": None}}),
        (("scaling", "guards"), {"bounds": {"max": 3}}),
        (("scaling", "mode"), "asleep"),
        (("scaling", "unknown"), 1),
        (("scaling", "min_parallelism"), 0),
        (("scaling", "min_parallelism"), 9),
        (("scaling", "initial_parallelism"), 99),
        (("scaling", "interactive"), "yes"),
        (("job_id",), "Rates"),
        (("job_id",), "a..b"),
        (("sources",), []),
        (("sources",), ["a..b"]),
        (("version",), 0),
        (("unknown",), 1),
        (("application", "backend"), "kubernetes"),
        (("application", "backend"), "mesos"),
        (("application", "kubernetes"), {"namespace": "jobs", "image": "spark"}),
        (("application", "kubernetes"), {"namespace": "Jobs", "image": "spark"}),
        (("application", "kubernetes"), {"namespace": "jobs"}),
        (("application", "kubernetes"), {"namespace": "jobs", "image": "a b"}),
        (("application", "kubernetes"), {"namespace": "jobs", "image": "spark", "driver_template": 1}),
        (("application", "kubernetes"), {"namespace": "jobs", "image": "spark", "spark_application": 1}),
        (("application", "kubernetes"), {"namespace": "jobs", "image": "s", "volumes": [{"name": "d", "path": "/d"}]}),
        (("application", "kubernetes"), {"namespace": "jobs", "image": "s", "volumes": [{"name": "d", "path": "d"}]}),
        (("application", "control_dir"), None),
        (("application", "executor_cores"), 3),
        (("application", "rest_url"), "ftp://x"),
        (("application", "conf"), {"a": 1}),
        (("application", "script"), ""),
        (("application", "script"), "/jobs/rates.jar"),
        (("application", "main_class"), "com.example.Rates"),
        (("application", "main_class"), "not a class"),
        (("manual",), {"request_id": "r", "parallelism": 2, "reason": "sale"}),
        (("manual",), None),
        (("pipeline_id",), "shop"),
    ],
)
def test_schema_and_apply_agree_on_fields(path: tuple[str, ...], value: Any) -> None:
    """Unknown names, wrong values and wrong places are judged alike."""
    agree(changed(path, value))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2000),
    st.floats(-2, 2000, allow_nan=False).filter(lambda x: not x.is_integer()),
    st.sampled_from([0, 1, -1, 0.5, 1.5, 10**6, 86_400]),
    st.text("aZ0-:;* ", max_size=8),
    st.lists(st.integers(), max_size=1),
    st.dictionaries(st.just("a"), st.integers(), max_size=1),
)
"""No whole float such as 3.0: JSON Schema takes it for an integer, `tidegate apply` does not."""


@settings(max_examples=400)
@given(where=st.sampled_from(OPTIONS), value=VALUES)
def test_schema_and_apply_agree_on_options(where: tuple[str, str, str], value: Any) -> None:
    """Whatever an option is set to, an editor and `tidegate apply` say the same of it."""
    kind, name, option = where
    if kind == "policy":
        agree(changed(("scaling",), {"policy": name, "policy_options": {option: value}}))
    else:
        agree(changed(("scaling", "guards"), {name: {option: value}}))


@settings(max_examples=200)
@given(
    field=st.sampled_from(
        [
            *((name,) for name in JobSpec.model_fields),
            *(("scaling", name) for name in ("mode", "policy", "min_parallelism", "lag_objective_seconds")),
            *(("application", name) for name in ("master", "args", "executor_memory_mb", "env")),
        ]
    ),
    value=VALUES,
)
def test_schema_and_apply_agree_on_any_value(field: tuple[str, ...], value: Any) -> None:
    """The fields of a job are judged alike, whatever they are set to."""
    agree(changed(field, value))
