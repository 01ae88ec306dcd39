"""How a script starts a query: kept, so that the same query can be started later, or again."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

FENCED = 75
"""Exit code of a driver that finds a newer run (EX_TEMPFAIL of sysexits.h)."""

_NUMBERS = re.compile(r"#\d+L?|@[0-9a-f]+")
"""In a plan: those of columns and of objects, which are others each time that a script makes it."""
_FINAL = 0x10
"""Of java.lang.reflect.Modifier."""


class Fenced(SystemExit):
    """A newer run is allowed on the checkpoint. As a SystemExit it passes through `except Exception` in a script."""

    def __init__(self, text: str) -> None:
        super().__init__(FENCED)
        self.text = text


@dataclass(frozen=True, slots=True)
class QueryStart:
    """A call of `DataStreamWriter.start` or `toTable`."""

    function: Callable[..., Any]
    writer: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    surroundings: Surroundings | None = None
    line: str = ""
    """File and line of the script that calls it, if known."""

    def __call__(self) -> Any:
        """Start the query from its checkpoint, with the settings that the script made before its own call."""
        if self.surroundings is None:
            return self.function(self.writer, *self.args, **self.kwargs)
        with self.surroundings.restored():
            return self.function(self.writer, *self.args, **self.kwargs)

    @property
    def origin(self) -> str:
        """Return what the query has in common with an earlier run of it: the line of the script, and its plan."""
        plan = self.writer._df._jdf.queryExecution().logical().toString()
        return f"{self.line}\n{_NUMBERS.sub('', plan)}" if self.line else ""

    @property
    def asked(self) -> dict[str, Any]:
        """Return what the call says, by name, options included."""
        given = inspect.signature(self.function).bind_partial(self.writer, *self.args, **self.kwargs).arguments
        return {**given, **given.get("options", {})}

    def session(self) -> Any:
        """Return a session of the JVM's with the settings of this start, which nobody else uses or changes."""
        own = self.surroundings
        return self.writer._spark._jsparkSession.cloneSession() if own is None else own.session

    def setting(self, name: str) -> str | None:
        """Return a setting that the script made before its call; None if there is none."""
        conf = self.writer._spark.conf if self.surroundings is None else self.surroundings.session.conf()
        found: str | None = conf.get(name, None)
        return found

    def on_its_own(self) -> QueryStart:
        """Return the same start, which stays the same although the script uses the writer and its session again."""
        copy = self.writer._df.writeStream
        for field in self.writer._jwrite.getClass().getDeclaredFields():
            if not field.getModifiers() & _FINAL:
                field.setAccessible(True)
                field.set(copy._jwrite, field.get(self.writer._jwrite))
        return replace(self, writer=copy, surroundings=Surroundings(copy._spark))


class Surroundings:
    """What a query takes over when it starts: the settings of the session, and the properties of the thread."""

    def __init__(self, session: Any) -> None:
        self.session = session._jsparkSession.cloneSession()
        """Of the JVM, with the settings, functions and views of this moment."""
        self._conf = session._jsparkSession.sessionState().conf()
        self._spark = session.sparkContext._jsc.sc()
        self._settings = self._conf.getAllConfs()
        self._properties = self._spark.getLocalProperties().clone()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Have them as they were, for a while."""
        settings, properties = self._conf.getAllConfs(), self._spark.getLocalProperties()
        try:
            self._set(self._settings)
            self._spark.setLocalProperties(self._properties.clone())
            yield
        finally:
            self._set(settings)
            self._spark.setLocalProperties(properties)

    def _set(self, settings: Any) -> None:
        found = self._conf.getAllConfs()
        if found.equals(settings):
            return
        wanted, known = _entries(settings), _entries(found)
        for key in known.keys() - wanted.keys():
            self._conf.unsetConf(key)
        for key, value in wanted.items() - known.items():
            self._conf.setConfString(key, value)


class PendingQuery(StreamingQuery):  # type: ignore[misc]
    """The script's handle of a query that is started later. Whoever uses it waits for that."""

    def __init__(self, how: QueryStart, wait: Callable[[], None]) -> None:
        # there is no query of the JVM to begin with
        self.how = how
        self._wait = wait
        self._started: Any = None

    @property
    def _jsq(self) -> Any:
        if self._started is None:
            self._wait()
        return self._started

    @_jsq.setter
    def _jsq(self, started: Any) -> None:
        self._started = started


def _entries(settings: Any) -> dict[str, str]:
    """Return the entries of a Scala map; as one text, because each would be a call of its own."""
    lines = settings.mkString("\0").split("\0")
    return {key: value for key, _, value in (line.partition(" -> ") for line in lines)}
