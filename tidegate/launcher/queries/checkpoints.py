"""Where queries keep their checkpoints: gives those without a place of their own one that stays, and tells the place.

Without the option `checkpointLocation`, Spark looks at the setting `spark.sql.streaming.checkpointLocation`. Below it,
a query with a name has a folder of that name; but one without a name gets a random folder at each start, so the next
run does not find it. Without the setting, some sinks make do with a temporary folder, and others refuse to start
(ResolveWriteToStream of Spark 4.2). The actuator sets it to the spec's `checkpoint_location`; this module takes care
of the queries without a name: the first one of a run has its checkpoint at the location itself, the n-th one in the
folder `query-<n>` below. So the order in which a script starts such queries must stay the same; names are safer. If one
has failed, and the same line of the script starts the same plan again, that query goes on from its checkpoint. A name
with a colon is no path for Spark, and one with a slash would be a folder in a folder, where nobody looks: these get a
folder of a name that is changed a little.

A memory sink cannot be restarted from a checkpoint unless it writes complete results. It keeps a temporary folder, and
is not reported: what it wrote is gone with the driver anyway.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any
from zlib import crc32

from tidegate.launcher.queries.query_start import QueryStart
from tidegate.launcher.spark.hadoop import HadoopPath, names, place_of
from tidegate.launcher.spark.query_loop import execution_of

SETTING = "spark.sql.streaming.checkpointLocation"
_OPTION = "checkpointLocation"


class CheckpointPlaces:
    """The checkpoints of one run's queries."""

    def __init__(self) -> None:
        self._unnamed = 0
        self._given: set[str] = set()
        self._temporary: set[str] = set()
        self._origins: dict[str, str] = {}
        """What each place of a query without a name was given for, last."""
        self._started: dict[str, Any] = {}
        """The query that was started there last."""

    def place(self, how: QueryStart, origin: str = "") -> None:
        """Give a query that is about to start a checkpoint that stays, if it has none.

        `origin` tells which query of the script it is; an empty one, that nobody knows.
        """
        writer, asked = how.writer, how.asked
        location = writer._spark.conf.get(SETTING, None)
        if not location or any(key.lower() == _OPTION.lower() for key in asked):
            return
        options = private_field(writer, "extraOptions")
        own = options.get(_OPTION)
        if own.isDefined() and own.get() not in self._given:  # a writer may be started twice
            return
        if (asked.get("format") or private_field(writer, "source")) == "memory":
            if str(asked.get("outputMode") or private_field(writer, "outputMode")).lower() != "complete":
                writer.option(_OPTION, self._temporary_place())
        else:
            given = options.get("queryName")
            name = asked.get("queryName") or (given.get() if given.isDefined() else None)
            place = self._of_name(location, name, origin)
            if place is not None:
                writer.option(_OPTION, place)

    def of_statement(self, session: Any, statement: Any) -> str | None:
        """Return a checkpoint that stays for a query of a main class; None if it has one, or gets one by its name.

        `session` and `statement` are the JVM's: a SparkSession, and the WriteToStreamStatement of the start.
        """
        location = session.conf().get(SETTING, None)
        if not location or statement.userSpecifiedCheckpointLocation().isDefined():
            return None
        if statement.sink().getClass().getSimpleName() == "MemorySink":
            return None if statement.outputMode().toString() == "Complete" else self._temporary_place()
        given = statement.userSpecifiedName()
        return self._of_name(location, given.get() if given.isDefined() else None)

    def started(self, how: QueryStart, query: Any) -> None:
        """Remember which query was started at a place that it was given."""
        option = private_field(how.writer, "extraOptions").get(_OPTION)
        if option.isDefined() and option.get() in self._origins:
            self._started[option.get()] = query

    def _of_name(self, location: str, name: str | None, origin: str = "") -> str | None:
        """Return the place of a query; None if Spark finds a good one by the name."""
        if not name:
            place = self._failed_at(origin) or self._next(location)
            self._origins[place] = origin
            return place
        folder = re.sub("[:/]", "_", name)
        if folder == name or (":" not in name and newest_batch(place_of(f"{location}/{name}") / "offsets") is not None):
            return None  # or it began there before
        place = f"{location.rstrip('/')}/{folder}-{crc32(name.encode()):08x}"  # of another name, it is another place
        self._given.add(place)
        return place

    def _failed_at(self, origin: str) -> str | None:
        """Return the place of the only query of an origin that has failed, if there is just one."""
        failed = [
            place
            for place, query in self._started.items()
            if self._origins[place] == origin and not query.isActive and query.exception() is not None
        ]
        return failed[0] if origin and len(failed) == 1 else None

    def _next(self, location: str) -> str:
        """Return the place of the next query without a name."""
        self._unnamed += 1
        place = location if self._unnamed == 1 else f"{location.rstrip('/')}/query-{self._unnamed}"
        self._given.add(place)
        return place

    def _temporary_place(self) -> str:
        place = tempfile.mkdtemp(prefix="temporary-")
        self._temporary.add(f"file:{place}")
        return f"file://{place}"

    def describe(self, query: Any) -> list[dict[str, Any]]:
        """Return id and name of a query, and where it really keeps its checkpoint; nothing for a memory sink."""
        place = execution_of(query).resolvedCheckpointRoot()
        return [] if place in self._temporary else [{"id": query.id, "name": query.name, "checkpoint": place}]


def private_field(writer: Any, name: str) -> Any:
    """Return a private field of the JVM's DataStreamWriter: it has no method that tells its options."""
    inner = writer._jwrite
    field = inner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(inner)


def checkpoint_of(how: QueryStart) -> str | None:
    """Return where a query will keep its checkpoint, as Spark's StreamingQueryManager finds it; None if unknown."""
    options, given = private_field(how.writer, "extraOptions"), how.asked

    def option(name: str) -> str | None:
        found = options.get(name)
        return given.get(name) or (found.get() if found.isDefined() else None)

    default, name = how.setting(SETTING), option("queryName")
    return option("checkpointLocation") or (f"{default}/{name}" if default and name else None)


def has_committed(how: QueryStart) -> bool:
    """Return whether the checkpoint of a query has a committed batch; False if that cannot be seen."""
    location = checkpoint_of(how)
    return location is not None and newest_batch(place_of(location) / "commits") is not None


def newest_batch(log: Path | HadoopPath) -> int | None:
    """Return the newest batch in the log of a checkpoint; None if there is none, or it cannot be seen."""
    try:
        return max((int(name) for name in names(log) if name.isdigit()), default=None)
    except OSError:
        return None


def beside_checkpoints(location: str) -> Path | HadoopPath:
    """Return a folder of Tidegate's in a job's checkpoint location."""
    return place_of(location) / ".tidegate"
