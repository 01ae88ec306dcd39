"""The jar cache, with a stand-in for Maven that "downloads" what the test specifies."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tidegate.interrupts import interruptible
from tidegate.runtime.poll import wait_until
from tidegate.stack import fetch, setup
from tidegate.stack.errors import StackError
from tidegate.stack.fetch import Artifact
from tidegate.stack.jars import (
    JAR_SETS,
    JarSet,
    cache_root,
    ensure_jars,
    read_lock,
    spark_home,
    spark_kafka,
    write_lock,
)
from tidegate.stack.java import Java

ROOT = Path(__file__).parents[2]
JAVA = Java(Path("/nowhere"), "17")
SET = JarSet("set-1", (Artifact("org.example", "a", "1"),), transitive=True)


class Shop:
    """A cache, a lock file and a Maven; `stock` is what Maven delivers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.progress: list[str] = []
        self.environ = {"PATH": f"{folder}/bin:/usr/bin:/bin", "TIDEGATE_CACHE": str(folder / "cache")}
        self.cached = folder / "cache" / "jars" / SET.name
        (folder / "bin").mkdir()
        self.stock({"a-1.jar": "a", "b-1.jar": "b"})
        self.lock({"a-1.jar": "a", "b-1.jar": "b"})

    def stock(self, jars: dict[str, str], *, code: int = 0) -> None:
        """Lets Maven bring `jars` and end with `code`."""
        copies = "".join(f'printf %s {text} > "$out/{name}"; echo "Copying {name}"\n' for name, text in jars.items())
        maven = self.folder / "bin" / "mvn"
        maven.write_text(
            '#!/bin/sh\nfor word; do case "$word" in -DoutputDirectory=*) out="${word#*=}";; esac; done\n'
            f'mkdir -p "$out"\n{copies}echo called >> {self.folder}/calls\nexit {code}\n'
        )
        maven.chmod(0o755)

    def lock(self, jars: dict[str, str]) -> None:
        """Locks `jars` with the checksums of the given texts."""
        write_lock({SET.name: {name: sha256(text) for name, text in jars.items()}}, self.folder / "jars.lock")

    def get(self) -> list[Path]:
        """Return what `ensure_jars` gives its caller."""
        return ensure_jars(SET, JAVA, self.progress.append, self.environ, self.folder / "jars.lock")

    @property
    def fetches(self) -> int:
        """How often Maven was asked."""
        calls = self.folder / "calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0


def sha256(text: str) -> str:
    """The checksum of a text's bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A shop whose stock matches its lock file."""
    return Shop(tmp_path)


def test_jars_are_fetched_once(shop: Shop) -> None:
    """The second run takes what the first one cached."""
    first = shop.get()
    assert [jar.name for jar in first] == ["a-1.jar", "b-1.jar"]
    assert shop.get() == first
    assert shop.fetches == 1
    assert shop.progress == ["fetching jars of set-1: 1 of 2", "fetching jars of set-1: 2 of 2"]


@pytest.mark.parametrize("damage", ["content", "missing", "extra"])
def test_a_damaged_cache_is_fetched_again(shop: Shop, damage: str) -> None:
    """A cached set with any fault is replaced, and the user is told why."""
    shop.get()
    if damage == "content":
        (shop.cached / "a-1.jar").write_text("other")
    elif damage == "missing":
        (shop.cached / "a-1.jar").unlink()
    else:
        (shop.cached / "c-1.jar").write_text("c")
    shop.get()
    assert shop.fetches == 2
    assert any("differ from jars.lock" in line for line in shop.progress)
    assert sorted(jar.name for jar in shop.cached.iterdir()) == ["a-1.jar", "b-1.jar"]


@pytest.mark.parametrize(
    ("stock", "message"),
    [
        ({"a-1.jar": "evil", "b-1.jar": "b"}, f"a-1.jar has sha256 {sha256('evil')}"),
        ({"a-1.jar": "a"}, "b-1.jar is missing"),
        ({"a-1.jar": "a", "b-1.jar": "b", "c-1.jar": "c"}, "c-1.jar is not in jars.lock"),
    ],
)
def test_jars_that_are_not_as_locked_never_reach_the_cache(shop: Shop, stock: dict[str, str], message: str) -> None:
    """Fetched jars that differ from the lock are refused by name, and none of them stay."""
    shop.stock(stock)
    with pytest.raises(StackError, match=r"do not match jars\.lock") as refusal:
        shop.get()
    assert message in str(refusal.value)
    assert list(shop.cached.parent.iterdir()) == []


def test_a_forced_fetcher_that_fails_says_how(shop: Shop) -> None:
    """The error carries the exit code and the last lines of the program."""
    shop.stock({}, code=7)
    shop.environ["TIDEGATE_JAR_FETCHER"] = "maven"
    with pytest.raises(StackError, match="mvn ended with 7"):
        shop.get()


def test_a_fetch_that_hangs_ends_in_time_with_all_that_it_has_started(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mvn may be a script that waits for another program, which holds the pipe open that is read."""
    monkeypatch.setattr(fetch, "FETCH_SECONDS", 0.5)
    (shop.folder / "bin" / "mvn").write_text("#!/bin/sh\nsleep 60\nexit 0\n")
    shop.environ["TIDEGATE_JAR_FETCHER"] = "maven"
    began = time.monotonic()
    with pytest.raises(StackError, match=r"mvn took more than 0\.5 s"):
        shop.get()
    assert time.monotonic() - began < 30


def test_an_unknown_fetcher_is_refused(shop: Shop) -> None:
    """A typo in the setting is an error."""
    shop.environ["TIDEGATE_JAR_FETCHER"] = "gradle"
    with pytest.raises(StackError, match="TIDEGATE_JAR_FETCHER is 'gradle'"):
        shop.get()


@pytest.mark.parametrize(
    "line", ["abc  set/a.jar", f"{'0' * 64} set/a.jar", f"{'0' * 64}  a.jar", f"{'0' * 64}  s/../a.jar"]
)
def test_a_bad_line_in_the_lock_is_named(tmp_path: Path, line: str) -> None:
    """File, line number and text of a bad line are in the error."""
    lock = tmp_path / "jars.lock"
    lock.write_text(f"{1:064}  set/good.jar\n{line}\n")
    with pytest.raises(StackError) as error:
        read_lock(lock)
    assert f"{lock}:2" in str(error.value)
    assert repr(line) in str(error.value)


def test_the_committed_lock_covers_exactly_the_sets_in_use() -> None:
    """A changed version cannot be committed without its checksums, nor leave old ones behind."""
    assert set(read_lock()) == {jar_set.name for jar_set in JAR_SETS}


def test_the_connector_doubles_nothing_that_pyspark_ships() -> None:
    """No library is on Spark's class path in two versions."""
    shipped = {jar.name.rpartition("-")[0] for jar in (spark_home() / "jars").glob("*.jar")}
    added = {jar.rpartition("-")[0] for jar in read_lock()[spark_kafka().name]}
    assert len(added) == 4
    assert not added & shipped


def test_a_user_without_a_home_is_told_where_the_cache_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the user of a container whose number is in no list of users."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(StackError, match="set TIDEGATE_CACHE to a folder"):
        cache_root({})
    assert cache_root({"TIDEGATE_CACHE": "/cache"}) == Path("/cache")


def test_setup_says_in_a_line_that_the_cache_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A read-only home, or a full disk, is no bug: `make` shows no traceback."""
    (tmp_path / "file").touch()

    def written(_tell: object) -> None:
        (tmp_path / "file" / "jars").mkdir()

    monkeypatch.setattr(setup, "prepare", written)
    assert setup.main([]) == 1
    told = capsys.readouterr().err
    assert told.startswith("setup: ")
    assert str(tmp_path / "file" / "jars") in told
    assert len(told.splitlines()) == 1


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_setup_that_is_told_to_end_leaves_neither_a_download_nor_its_files(
    shop: Shop, number: signal.Signals
) -> None:
    """A run of CI is ended by SIGTERM; each half download would stay in the cache for ever."""
    (shop.folder / "bin" / "mvn").write_text(f"#!/bin/sh\necho $$ > {shop.folder}/pid\nexec sleep 60\n")
    environ = os.environ | shop.environ | {"PATH": f"{shop.folder}/bin:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "tidegate.stack.setup"]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert wait_until(lambda: (shop.folder / "pid").exists() and (shop.folder / "pid").read_text(), 30, 0.05)
        running.send_signal(number)
        told = running.communicate(timeout=20)[1]
    with pytest.raises(ProcessLookupError):
        os.kill(int((shop.folder / "pid").read_text()), signal.SIGKILL)
    assert list(shop.cached.parent.iterdir()) == []
    assert (running.returncode, told.splitlines()[-1]) == (130, "setup: interrupted")


@pytest.mark.usefixtures("ctrl_c")
def test_a_setup_that_is_told_to_end_as_a_download_starts_leaves_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the program, nor the timer, for which Python would wait ten minutes before it ends."""
    (shop.folder / "bin" / "mvn").write_text(f"#!/bin/sh\necho $$ > {shop.folder}/pid\nexec sleep 60\n")
    start, started = threading.Timer.start, list[threading.Timer]()

    def interrupted(timer: threading.Timer) -> None:
        start(timer)
        started.append(timer)
        assert wait_until(lambda: (shop.folder / "pid").exists() and (shop.folder / "pid").read_text(), 30, 0.05)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(threading.Timer, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), interruptible():
        shop.get()
    with pytest.raises(ProcessLookupError):
        os.kill(int((shop.folder / "pid").read_text()), signal.SIGKILL)
    (timer,) = started
    timer.join(30)
    assert not timer.is_alive()
