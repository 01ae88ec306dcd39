"""Recorded event logs, and how Spark lays them out on disk: README.md describes them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import zstandard

from tidegate.sparklog.application_run import ApplicationRun
from tidegate.sparklog.parse import parse

HERE = Path(__file__).parent
VERSIONS = HERE / "versions"
APP_ID = "app-20261121143331-0000"
"""Of `standalone.ndjson`, whose job is `recorded` and whose topic is `rec`."""
MASTER = (HERE / "master.json").read_bytes()


def recorded(name: str = "standalone") -> list[bytes]:
    """Return the lines of a recording, each with its newline."""
    return (HERE / f"{name}.ndjson").read_bytes().splitlines(keepends=True)


def versions_of(job: str) -> list[str]:
    """Return the releases of Spark on which a job was recorded, oldest first."""
    return sorted(path.parent.name for path in VERSIONS.glob(f"*/{job}.zstd"))


def of_version(version: str, job: str) -> list[bytes]:
    """Return the lines of a job's log as a version of Spark wrote them, each with its newline."""
    packed = (VERSIONS / version / f"{job}.zstd").read_bytes()
    return zstandard.ZstdDecompressor().decompress(packed).splitlines(keepends=True)


def run_of(lines: Iterable[bytes]) -> ApplicationRun:
    """Return the run after some lines."""
    run = ApplicationRun()
    for line in lines:
        if (event := parse(line)) is not None:
            run.apply(event)
    return run


def as_app(lines: Iterable[bytes], *, app_id: str = APP_ID, job_id: str = "recorded", later: int = 0) -> list[bytes]:
    """Return the lines as those of another application, job, and start, `later` seconds after the recorded one."""
    changed = []
    for line in lines:
        event: dict[str, Any] = json.loads(line)
        if event["Event"] == "SparkListenerEnvironmentUpdate":
            event["Spark Properties"]["spark.tidegate.job_id"] = job_id
        if event["Event"] == "SparkListenerApplicationStart":
            event["App ID"] = app_id
            event["Timestamp"] += later * 1000
        changed.append(json.dumps(event, separators=(",", ":")).encode() + b"\n")
    return changed


def up_to(lines: Iterable[bytes], event: str, count: int = 1) -> list[bytes]:
    """Return the lines up to and with the `count`-th of a kind of event."""
    taken = []
    for line in lines:
        taken.append(line)
        if event.encode() in line[:110]:
            count -= 1
            if count == 0:
                return taken
    raise ValueError(f"no such {event}")


def rolling(directory: Path, lines: Iterable[bytes], app_id: str = APP_ID, index: int = 1, codec: str = "") -> Path:
    """Append lines to file `index` of a rolling log, each in a frame of its own where zstd; return the file."""
    folder = directory / f"eventlog_v2_{app_id}"
    folder.mkdir(exist_ok=True)
    (folder / f"appstatus_{app_id}.inprogress").touch()
    file = folder / f"events_{index}_{app_id}{codec}"
    pack = zstandard.ZstdCompressor().compress
    with file.open("ab") as out:
        for line in lines:
            out.write(pack(line) if codec == ".zstd" else line)
    return file
