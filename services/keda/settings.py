"""Settings of the external scaler for KEDA."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from tidegate.runtime.settings import ServiceSettings


class KedaSettings(ServiceSettings):
    """Where KEDA finds the scaler."""

    keda_host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` for every address, as in `deploy/kubernetes`."""
    keda_port: int = Field(default=9090, ge=0, le=65535)
    """Port of the gRPC server; 0: any free port."""
    keda_tls_certificate: Path | None = None
    """PEM file with the server's certificate; without it, the scaler speaks plain text."""
    keda_tls_key: Path | None = None
    """PEM file with the key of that certificate."""
    keda_tls_client_ca: Path | None = None
    """PEM file with the authority of the clients' certificates; with it, KEDA must show one."""
    keda_history_hours: float = Field(default=0.5, gt=0, le=48)
    """How far back to read decisions at the start."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.keda_tls_certificate is None) != (self.keda_tls_key is None):
            raise ValueError("keda_tls_certificate and keda_tls_key must be set together")
        if self.keda_tls_client_ca is not None and self.keda_tls_certificate is None:
            raise ValueError("keda_tls_client_ca needs keda_tls_certificate and keda_tls_key")
        return self
