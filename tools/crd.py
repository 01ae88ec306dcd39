"""Writes the CustomResourceDefinition of `StreamingJob`, made from the model of a `JobSpec`.

python -m tools.crd            writes deploy/kubernetes/crd/streamingjobs.yaml
python -m tools.crd --check    fails if the file is not what it would write; for `make check`

`spec` has the fields of a job file. Those that belong to one version of a spec are not in it: the object's name is the
job's id, Kubernetes counts the versions, and `slots` is an operator's size. The schema is structural, as Kubernetes
asks: nothing is referred to, every field has its type, and what JSON Schema alone can say is left to the operator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tidegate.events.decision import Status
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import ClusterState
from tools.generated import write_or_check
from tools.job_file import Untitled

Schema = dict[str, Any]

FILE = Path(__file__).resolve().parents[1] / "deploy" / "kubernetes" / "crd" / "streamingjobs.yaml"
WRITTEN = "# Written by `python -m tools.crd` from tidegate/events/job.py; change that, or tools/crd.py.\n"
GROUP, VERSION, KIND, PLURAL = "tidegate.dev", "v1alpha1", "StreamingJob", "streamingjobs"

NOT_IN_SPEC = ("job_id", "version", "manual", "change")
"""Fields of a `JobSpec` that come from the object's metadata, or from `slots`."""
ANYTHING: Schema = {"x-kubernetes-preserve-unknown-fields": True}
"""The schema of a value that may have several types; Tidegate checks it."""
SIZES = {
    "min_parallelism <= max_parallelism": ("min_parallelism", "max_parallelism"),
    "min_parallelism <= initial_parallelism": ("min_parallelism", "initial_parallelism"),
    "initial_parallelism <= max_parallelism": ("initial_parallelism", "max_parallelism"),
}
"""Rules that the API server checks itself, with the fields that must be there."""


def streaming_job_crd() -> Schema:
    """Return the CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "tidegate"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["sj"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _object()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.slots",
                            "statusReplicasPath": ".status.slots",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        _column("Slots", ".status.slots", "integer", "Task slots of the running job."),
                        _column("Target", ".status.target", "integer", "Task slots that Tidegate has decided on."),
                        _column("State", ".status.state", "string", "What the cluster says of the job."),
                        _column("Status", ".status.status", "string", "Whether the size is right."),
                        _column("Accepted", _condition("Accepted"), "string", "Whether the spec is in force."),
                        _column("Healthy", _condition("Healthy"), "string", "Whether the job keeps up.", 1),
                        _column("Why", ".status.why", "string", "The newest decision, in a sentence."),
                        _column("Age", ".metadata.creationTimestamp", "date", "Since when the object exists."),
                    ],
                }
            ],
        },
    }


def _condition(kind: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].status'


def _column(name: str, path: str, kind: str, what: str, priority: int = 0) -> Schema:
    column = {"name": name, "type": kind, "jsonPath": path, "description": what}
    return column | ({"priority": priority} if priority else {})


def _object() -> Schema:
    return {
        "type": "object",
        "description": "A Spark Structured Streaming job that Tidegate runs and scales. Its name is the job's id.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 63}},
            },
            "spec": spec_schema(),
            "status": STATUS,
        },
    }


def spec_schema() -> Schema:
    """Return the schema of `spec`: that of a job file, with `slots`."""
    made = JobSpec.model_json_schema(schema_generator=Untitled)
    definitions = made.pop("$defs")
    for name in NOT_IN_SPEC:
        del made["properties"][name]
    made["required"] = [name for name in made["required"] if name not in NOT_IN_SPEC]
    spec = _structural(made, definitions)
    spec["description"] = "What to run, what it reads and writes, and how it may be scaled: the fields of a job file."
    spec["properties"]["slots"] = {
        "type": "integer",
        "minimum": 0,
        "maximum": 1_000_000,
        "description": "The size in task slots. Whoever writes it asks for that size, as `tidegate scale` does: "
        "`kubectl scale`, or an autoscaler. The guards still apply. Tidegate writes it too, once the job has settled "
        "at another size, so leave it out of files that you apply.",
    }
    pods = spec["properties"]["application"]["properties"]["kubernetes"]
    pods["required"].remove("namespace")
    pods["properties"]["namespace"]["description"] = "Where they are: the namespace of the object, and no other."
    spec["properties"]["scaling"]["x-kubernetes-validations"] = [
        {
            "rule": " || ".join([f"!has(self.{field})" for field in fields])
            + " || "
            + " ".join(f"self.{word}" if word in fields else word for word in rule.split()),
            "message": f"must hold: {rule}",
        }
        for rule, fields in SIZES.items()
    ]
    return spec


def _structural(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Return a schema of pydantic's as Kubernetes takes it: defaults become words, "or null" goes without saying."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = definitions[name] | {key: value for key, value in schema.items() if key != "$ref"}
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) > 1:
        return _described(schema, _one_of(choices))
    if choices:
        inner = _structural(choices[0], definitions)
        return _described(schema, inner, inner.get("description", ""))
    if "type" not in schema and "enum" not in schema:
        return _described(schema, dict(ANYTHING))
    made = _rules(schema)
    if "items" in schema:
        made["items"] = _structural(schema["items"], definitions)
    if "properties" in schema:
        made["properties"] = {name: _structural(field, definitions) for name, field in schema["properties"].items()}
        if required := schema.get("required"):
            made["required"] = list(required)
    elif isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = _structural(schema["additionalProperties"], definitions)
    return _described(schema, made)


def _rules(schema: Schema) -> Schema:
    """Return what a schema asks of the value itself; OpenAPI's exclusive bounds are flags."""
    made: Schema = {key: schema[key] for key in KEPT if key in schema}
    for key, word in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if key in schema:
            made |= {word: schema[key], key: True}
    return made


def _one_of(choices: list[Schema]) -> Schema:
    """Return the schema of a value that may be of several kinds: rules that differ, of one type; or anything."""
    types = {choice.get("type") for choice in choices}
    if len(types) > 1 or None in types:
        return dict(ANYTHING)
    rules = [{key: value for key, value in _rules(choice).items() if key != "type"} for choice in choices]
    return {"type": types.pop(), "anyOf": rules}


KEPT = (
    "type",
    "enum",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "not",
)
"""Keywords that mean the same to Kubernetes."""


def _described(schema: Schema, made: Schema, otherwise: str = "") -> Schema:
    """Return a schema with its description on one line, and with its default in words."""
    said = [" ".join(str(schema.get("description", otherwise)).split())]
    default = schema.get("default")
    if default not in (None, [], {}, "") and not isinstance(default, dict):
        said.append(f"Default: {str(default).lower() if isinstance(default, bool) else default}.")
    text = " ".join(filter(None, said))
    made.pop("description", None)
    return ({"description": text} if text else {}) | made


def _field(kind: str, description: str, **more: Any) -> Schema:
    return {"type": kind, "description": description, **more}


_MOMENT = {"format": "date-time"}
_CONDITION: Schema = {
    "type": "object",
    "required": ["type", "status", "lastTransitionTime", "reason", "message"],
    "properties": {
        "type": _field("string", "Accepted, InSync or Healthy.", maxLength=316),
        "status": _field("string", "True, False or Unknown.", enum=["True", "False", "Unknown"]),
        "observedGeneration": _field("integer", "The generation of the object that this is about.", minimum=0),
        "lastTransitionTime": _field("string", "When the status changed last.", **_MOMENT),
        "reason": _field("string", "Why, in a word.", minLength=1, maxLength=1024),
        "message": _field("string", "Why, in a sentence.", maxLength=32768),
    },
}
STATUS: Schema = {
    "type": "object",
    "description": "What Tidegate has made of the spec. Only Tidegate writes it.",
    "properties": {
        "slots": _field("integer", "Task slots of the running job; 0 when it does not run, absent while nobody knows."),
        "target": _field("integer", "Task slots that the newest decision ends with."),
        "state": _field("string", "What the cluster says of the job.", enum=[state.value for state in ClusterState]),
        "status": _field("string", "Status of the newest decision.", enum=[status.value for status in Status]),
        "why": _field("string", "The newest decision in a sentence: the same as `tidegate why` says."),
        "selector": _field("string", "Labels of the job's executor pods, for autoscalers."),
        "version": _field("integer", "Version of the job's spec in force on the jobs topic."),
        "observedGeneration": _field("integer", "The newest generation of the object that Tidegate has dealt with."),
        "appliedSpec": _field("string", "Checksum of the `spec` that was taken over last, without `slots`."),
        "appliedSlots": _field("integer", "The `spec.slots` that Tidegate has taken over, or written, last."),
        "lastDecision": {
            "type": "object",
            "description": "The newest decision; `tidegate why JOB --at SEQUENCE` explains it.",
            "properties": {
                "id": _field("string", "Its id."),
                "sequence": _field("integer", "Its sequence number."),
                "at": _field("string", "When it was made.", **_MOMENT),
            },
        },
        "lastChange": {
            "type": "object",
            "description": "How far the last change of the job has come.",
            "properties": {
                "phase": _field("string", "The newest phase, such as `verified`."),
                "at": _field("string", "When it was reached.", **_MOMENT),
                "message": _field("string", "What happened, and what it has cost."),
            },
        },
        "conditions": {
            "type": "array",
            "description": "Accepted: the spec is valid and in force. InSync: nobody has changed the job elsewhere. "
            "Healthy: decisions are fresh and the job keeps up.",
            "items": _CONDITION,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    },
}


def not_structural(schema: Schema, place: str = "spec") -> Iterator[str]:
    """Yield what Kubernetes would refuse in a schema, with its place."""
    if unknown := schema.keys() - {*KEPT, *ALLOWED}:
        yield f"{place}: unsupported {', '.join(sorted(unknown))}"
    if "type" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        yield f"{place}: no type"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{place}: both properties and additionalProperties"
    for name, field in schema.get("properties", {}).items():
        yield from not_structural(field, f"{place}.{name}")
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            yield from not_structural(schema[inner], f"{place}[]")


ALLOWED = (
    "description",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "properties",
    "additionalProperties",
    "items",
    "required",
    "anyOf",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)
"""What a structural schema may say besides."""


class _Plain(yaml.SafeDumper):
    """YAML without anchors: readers need not look elsewhere."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write everything where it belongs."""
        return True


def text() -> str:
    """Return the file."""
    made = yaml.dump(streaming_job_crd(), Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)
    return WRITTEN + made


def main(arguments: list[str]) -> int:
    """Write the file, or check it; return the exit code."""
    return write_or_check({FILE: text()}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
