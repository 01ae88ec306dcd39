"""kubectl, for tests on a real cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class KubectlFailed(AssertionError):
    """kubectl ended with an error; the text is its own."""


class Kubectl:
    """kubectl in one namespace; without any, where each object says."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def __call__(self, *arguments: str, stdin: str | None = None, seconds: float = 60.0) -> str:
        """Run kubectl, return what it prints; raise `KubectlFailed`."""
        ran = subprocess.run(
            ["kubectl", *(["--namespace", self.namespace] if self.namespace else []), *arguments],  # noqa: S607
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if ran.returncode != 0:
            raise KubectlFailed(f"kubectl {' '.join(arguments)}: {ran.stderr.strip()}")
        return ran.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return an object, or a list of them."""
        found: dict[str, Any] = json.loads(self("get", *arguments, "--output=json"))
        return found

    def apply(self, *objects: Mapping[str, Any]) -> str:
        """Apply objects."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return self("apply", "--filename=-", stdin=json.dumps(items))

    def allowed(self, account: str, acts: Iterable[str], namespace: str | None = None) -> set[str]:
        """Return which acts, such as `list pods`, an account of this namespace may do there, or in another one.

        The namespace "" is the whole cluster.
        """
        asked = list(acts)
        user = f"system:serviceaccount:{self.namespace}:{account}"
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated"]
        reviews = []
        for act in asked:
            verb, what = act.split()
            resource, _, part = what.partition("/")
            kind, _, group = resource.partition(".")
            attributes = {"verb": verb, "resource": kind, "group": group, "subresource": part}
            attributes |= {} if namespace == "" else {"namespace": namespace or self.namespace}
            review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
            reviews.append({**review, "spec": {"user": user, "groups": groups, "resourceAttributes": attributes}})
        said = self(
            "create",
            "--filename=-",
            "--output=jsonpath={.status.allowed}{' '}",
            stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews}),
        )
        return {act for act, answer in zip(asked, said.split(), strict=True) if answer == "true"}
