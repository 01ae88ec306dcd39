"""The JSON Schema of a job file: what `tidegate apply` accepts, so that an editor completes and checks `job.yaml`.

It is made from the same declarations that `tidegate apply` checks with: the model of a `JobSpec`, and the options of
the guards and of the policies that come with Tidegate. Unknown fields are refused, unlike in the schemas of events,
which say what a reader must accept. JSON Schema cannot express rules that span several fields; `tidegate apply` still
refuses what breaks them.

First line of a job file for editors with the YAML language server:

    # yaml-language-server: $schema=<path or address of job-file.schema.json>
"""

from __future__ import annotations

import inspect
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from tidegate.engine.guards import GUARDS
from tidegate.engine.options import former_names, option_model
from tidegate.events.job import JobSpec
from tidegate.installed import engine

Schema = dict[str, Any]

DEFAULT_POLICY = JobSpec.model_fields["scaling"].get_default(call_default_factory=True).policy


class Untitled(GenerateJsonSchema):
    """JSON Schema without a title on each field: it would only repeat the field's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        """No field gets a title."""
        return False


def job_file_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a job file."""
    made = JobSpec.model_json_schema(schema_generator=Untitled)
    policies = {name: p for name, p in engine().policies.items() if p.__module__.startswith("tidegate.")}
    options = {f"policy-{name}": _options(policy.Options) for name, policy in policies.items()}
    guards = {f"guard-{guard.name}": _options(guard) for guard in GUARDS}
    scaling = made["$defs"]["Scaling"]
    fields = scaling["properties"]
    fields["policy"] = {"enum": sorted(policies), "default": DEFAULT_POLICY, "description": "Proposes the sizes."}
    fields["policy_options"] = {"type": "object", "description": "Options of the policy."}
    fields["guards"] = {
        "type": "object",
        "description": "Options of the guards by name.",
        "properties": {guard.name: {"$ref": f"#/$defs/guard-{guard.name}"} for guard in GUARDS},
        "additionalProperties": False,
    }
    scaling["allOf"] = [_chosen(name) for name in policies]
    made["$defs"] |= options | guards
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:tidegate:job-file",
        **made,
        "title": "Tidegate job file",
        "description": "One job, for `tidegate apply`.",
    }


def _chosen(policy: str) -> Schema:
    """Return the condition that gives `policy_options` the options of the chosen policy."""
    chosen: Schema = {"properties": {"policy": {"const": policy}}}
    if policy != DEFAULT_POLICY:
        chosen["required"] = ["policy"]
    return {"if": chosen, "then": {"properties": {"policy_options": {"$ref": f"#/$defs/policy-{policy}"}}}}


def _options(owner: Any) -> Schema:
    """Return the schema of the options of a guard or policy. An option that is off is left out, never null."""
    made = option_model(owner).model_json_schema(schema_generator=Untitled)
    for name, field in made.get("properties", {}).items():
        if field.get("default", "") is None:
            kind, _ = field.pop("anyOf")
            del field["default"]
            made["properties"][name] = kind | field
    for name, former in former_names(owner).items():
        field = {key: value for key, value in made["properties"][name].items() if key != "default"}
        made["properties"][former] = field | {"description": f"The former name of `{name}`.", "deprecated": True}
        made.setdefault("allOf", []).append({"not": {"required": [name, former]}})
    made["description"] = inspect.getdoc(owner) or ""
    return made
