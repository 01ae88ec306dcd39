"""The CustomResourceDefinition of StreamingJob: generated, structural, and as strict as the model where it can be."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft4Validator

from tidegate.events.job import JobSpec
from tools import crd

EXAMPLE = yaml.safe_load((Path(__file__).parents[2] / "deploy" / "examples" / "job.yaml").read_text("utf-8"))
SPEC = crd.spec_schema()
VALIDATOR = Draft4Validator(SPEC)
"""OpenAPI's keywords are those of draft 4, `exclusiveMinimum: true` too."""


def example(**fields: Any) -> dict[str, Any]:
    """Return the example as a StreamingJob's spec, with fields like `scaling__mode` changed."""
    spec: dict[str, Any] = copy.deepcopy(EXAMPLE)
    for name in crd.NOT_IN_SPEC:
        spec.pop(name, None)
    for path, value in fields.items():
        *outer, last = path.split("__")
        place = spec
        for part in outer:
            place = place[part]
        place[last] = value
    return spec


def test_what_is_committed_is_what_the_tool_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is up to date; a changed one is found, and written again."""
    assert crd.main(["--check"]) == 0
    monkeypatch.setattr(crd, "FILE", tmp_path / "streamingjobs.yaml")
    assert crd.main(["--check"]) == 1
    assert crd.main([]) == 0
    assert crd.main(["--check"]) == 0


def test_the_schema_is_structural() -> None:
    """Nothing is referred to, each field has a type, and no keyword is one that Kubernetes refuses."""
    assert list(crd.not_structural(SPEC)) == []
    assert list(crd.not_structural(crd.STATUS, "status")) == []
    broken = SPEC | {"properties": SPEC["properties"] | {"x": {"$ref": "#/$defs/X"}}}
    assert list(crd.not_structural(broken)) == ["spec.x: unsupported $ref", "spec.x: no type"]


def test_a_list_shows_that_an_object_is_refused() -> None:
    """`kubectl get sj` has the column, not only `--output=wide`: everything else of a refused new object is empty."""
    columns = crd.streaming_job_crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    assert "Accepted" in {column["name"] for column in columns if not column.get("priority")}


def test_every_field_of_a_job_file_is_a_field_of_the_spec() -> None:
    """A job file is a StreamingJob's spec, but for what Kubernetes itself keeps; `slots` is added."""
    assert SPEC["properties"].keys() == (JobSpec.model_fields.keys() - {*crd.NOT_IN_SPEC}) | {"slots"}
    assert list(VALIDATOR.iter_errors(example())) == []
    assert list(VALIDATOR.iter_errors(example(slots=4))) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sources", []),
        ("sources", ["not a topic"]),
        ("interval_seconds", "often"),
        ("interval_seconds", 0),
        ("application__backend", "mesos"),
        ("application__executor_memory_mb", 10),
        ("application__stop_deadline_seconds", 0),
        ("scaling__mode", "sometimes"),
        ("scaling__max_parallelism", 0),
        ("slots", -1),
    ],
)
def test_the_api_server_refuses_what_the_model_refuses(field: str, value: object) -> None:
    """A wrong type, a value outside its range and a word outside its list are refused before Tidegate sees them."""
    assert list(VALIDATOR.iter_errors(example(**{field: value}))) != []


def test_the_rules_name_fields_that_exist() -> None:
    """Each rule of the API server is about fields of `scaling`, and holds where one of them is absent."""
    scaling = SPEC["properties"]["scaling"]
    for rule, said in zip(scaling["x-kubernetes-validations"], crd.SIZES.items(), strict=True):
        text, fields = said
        assert set(fields) <= scaling["properties"].keys()
        assert rule["message"] == f"must hold: {text}"
        first, second = fields
        assert rule["rule"] == f"!has(self.{first}) || !has(self.{second}) || self.{first} <= self.{second}"


def test_descriptions_are_lines_with_the_defaults_in_words() -> None:
    """`kubectl explain` says what a field means and what holds without it."""
    scaling = SPEC["properties"]["scaling"]["properties"]
    assert scaling["mode"]["description"].endswith("Default: active.")
    assert scaling["max_parallelism"]["description"] == "The most task slots that the job may have. Default: 16."
    assert "\n" not in str(SPEC["properties"]["application"]["properties"]["release"]["description"])
