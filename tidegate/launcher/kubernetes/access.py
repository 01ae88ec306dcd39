"""How to reach an API server of Kubernetes, and as whom: a pod's service account, or a kubeconfig.

`KUBECONFIG` wins where it is set; else a pod uses its service account; else there may be `~/.kube/config`. A kubeconfig
may hold a token or a client certificate. The token of a service account is read again for each request: it is renewed
within the hour.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its service account."""


class AccessError(OSError):
    """There is no way to an API server; the message says what to do."""


@dataclass(frozen=True)
class ApiAccess:
    """An API server, and what it is shown."""

    server: str
    """Its URL; `http` only for a proxy on this machine, and for tests."""
    found_in: str
    """Where this comes from, for messages."""
    ca_pem: str | None = None
    token: str | None = None
    token_file: Path | None = None
    cert_pem: str | None = None
    key_pem: str | None = None

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> ApiAccess:
        """Return the access of this process; raise `AccessError` if it has none."""
        home = Path(environ.get("HOME", "/")) / ".kube" / "config"
        if environ.get("KUBECONFIG"):
            return cls.from_kubeconfig(Path(environ["KUBECONFIG"].split(os.pathsep)[0]))
        if "KUBERNETES_SERVICE_HOST" in environ and (account / "token").is_file():
            host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
            server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
            ca = (account / "ca.crt").read_text(encoding="ascii")
            return cls(server, str(account), ca_pem=ca, token_file=account / "token")
        if home.is_file():
            return cls.from_kubeconfig(home)
        raise AccessError(
            "no Kubernetes: set KUBECONFIG to a kubeconfig, or run in a pod whose service account token is mounted"
            f" (there is no {account / 'token'})"
        )

    @classmethod
    def from_kubeconfig(cls, path: Path) -> ApiAccess:
        """Return the access of a kubeconfig's current context."""
        try:
            config = _parsed(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise AccessError(f"KUBECONFIG {path}: {error}") from error
        except ValueError as error:
            raise AccessError(f"KUBECONFIG {path}: {error}") from None
        context = _named(path, config, "context", config.get("current-context"))
        cluster = _named(path, config, "cluster", context.get("cluster"))
        user = _named(path, config, "user", context.get("user"))
        if "exec" in user or "auth-provider" in user:
            raise AccessError(f"KUBECONFIG {path}: the user logs in with a program; use a token or a certificate")
        if cluster.get("insecure-skip-tls-verify"):
            raise AccessError(f"KUBECONFIG {path}: insecure-skip-tls-verify is not supported; name the authority")
        token_file = user.get("tokenFile")
        return cls(
            str(cluster.get("server", "")),
            str(path),
            ca_pem=_pem(path, cluster, "certificate-authority"),
            token=user.get("token"),
            token_file=None if token_file is None else path.parent / str(token_file),
            cert_pem=_pem(path, user, "client-certificate"),
            key_pem=_pem(path, user, "client-key"),
        )

    def bearer(self) -> str | None:
        """Return the token to show, as it is now; None where a certificate is shown or nothing."""
        return self.token if self.token_file is None else self.token_file.read_text(encoding="ascii").strip()

    def tls(self) -> ssl.SSLContext:
        """Return what connections are made with."""
        context = ssl.create_default_context(cadata=self.ca_pem)
        # kubectl does not ask for what is added since Python 3.13, and the certificates of many clusters lack it
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.cert_pem is not None and self.key_pem is not None:
            # the ssl module takes the two from files alone
            with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".pem") as file:
                file.write(f"{self.cert_pem}\n{self.key_pem}\n")
                file.flush()
                context.load_cert_chain(file.name)
        return context


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        try:
            import yaml  # noqa: PLC0415 - services outside a cluster have it; a driver needs none
        except ImportError:
            raise ValueError(
                "reading YAML needs PyYAML; or write it with `kubectl config view --raw -o json`"
            ) from None
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"not YAML: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"a mapping is expected, found a {type(found).__name__}")  # noqa: TRY004 - a wrong file, not a wrong type
    return found


def _named(path: Path, config: dict[str, Any], kind: str, name: object) -> dict[str, Any]:
    """Return the entry of a name in one of a kubeconfig's three lists."""
    entries = config.get(f"{kind}s") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise AccessError(f"KUBECONFIG {path}: {kind}s must be a list of mappings")
    for entry in entries:
        if entry.get("name") == name:
            found = entry.get(kind) or {}
            if not isinstance(found, dict):
                raise AccessError(f"KUBECONFIG {path}: the {kind} {name!r} must be a mapping")
            return found
    raise AccessError(f"KUBECONFIG {path}: there is no {kind} {name!r}")


def _pem(path: Path, entry: dict[str, Any], field: str) -> str | None:
    """Return a certificate or key, which is in the file itself or in another one."""
    data, file = entry.get(f"{field}-data"), entry.get(field)
    try:
        if data is not None:
            return base64.b64decode(str(data)).decode("ascii")
        return None if file is None else (path.parent / str(file)).read_text(encoding="ascii")
    except OSError as error:
        raise AccessError(f"KUBECONFIG {path}: {error}") from error
    except ValueError:  # its text might hold the key
        raise AccessError(f"KUBECONFIG {path}: {field}{'' if data is None else '-data'} is no PEM") from None
