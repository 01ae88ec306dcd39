"""Settings of the console: `TIDEGATE_CONSOLE_…` variables, and those of every client."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

from tidegate.client import ClientSettings

Name = Annotated[str, StringConstraints(min_length=1, max_length=100)]
SHORTEST_TOKEN = 16


class ConsoleSettings(ClientSettings):
    """Where the console listens, and who may do what."""

    console_host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback, changes are off unless `console_operators` has a token."""
    console_port: int = Field(default=8090, ge=0, le=65535)
    """0: any free port."""
    console_operators: dict[Name, SecretStr] = Field(default_factory=dict)
    """Tokens by name, as JSON: `{"ada": "…"}`. An operator may pause, resume and scale; the name is recorded."""
    console_viewers: dict[Name, SecretStr] = Field(default_factory=dict)
    """Tokens by name of those who may only look. If there is one, everybody must sign in to see anything."""
    console_allowed_hosts: tuple[str, ...] = ()
    """Names under which browsers may reach the console; those of this machine when empty and bound to loopback."""
    console_https: bool = False
    """Whether a proxy in front of the console speaks HTTPS; then cookies are sent over HTTPS only."""
    console_history_hours: float = Field(default=3.0, gt=0, le=48)
    """How far back the page of a job goes at first. Decisions older than ten minutes are read when it is opened."""

    @model_validator(mode="after")
    def _tokens_are_long(self) -> Self:
        for field, tokens in (("operators", self.console_operators), ("viewers", self.console_viewers)):
            for name, token in tokens.items():
                if len(token.get_secret_value()) < SHORTEST_TOKEN:
                    # A long name may be the token, in the wrong place; a log must not show it.
                    shown = repr(name) if len(name) < SHORTEST_TOKEN else "a name longer than it (are they swapped?)"
                    raise ValueError(f"console_{field}: the token of {shown} has under {SHORTEST_TOKEN} characters")
        if both := self.console_operators.keys() & self.console_viewers.keys():
            raise ValueError(f"both operator and viewer: {', '.join(sorted(both))}")
        return self

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the console."""
        if self.console_host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.console_host).is_loopback
        except ValueError:
            return False
