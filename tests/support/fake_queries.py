"""Stand-ins for what the launcher sees of Spark: writers, queries and the context, with the JVM's methods it calls."""

# ruff: noqa: N802 - the names are PySpark's and the JVM's

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any


class JavaOption:
    """Scala's Option."""

    def __init__(self, value: Any = None) -> None:
        self._value = value

    def isDefined(self) -> bool:
        """Whether there is a value."""
        return self._value is not None

    def get(self) -> Any:
        """Return the value; like Scala's, it fails when there is none."""
        if self._value is None:
            raise RuntimeError("None.get")
        return self._value


class JavaOptions(dict[str, str]):
    """Spark's CaseInsensitiveMap."""

    def get(self, key: str, _default: Any = None) -> Any:
        """Return the option of a name in any case."""
        return JavaOption({name.lower(): value for name, value in self.items()}.get(key.lower()))


def scala_seq(items: Sequence[Any]) -> Any:
    """Return Scala's Seq of these items."""
    return types.SimpleNamespace(size=lambda: len(items), apply=lambda number: items[number])


def _answers(**values: Any) -> Any:
    """Return an object of the JVM whose methods return these values."""
    return types.SimpleNamespace(**{name: lambda value=value: value for name, value in values.items()})


class FakeSession:
    """A SparkSession of an application, with a default checkpoint location, and the JVM's side of it."""

    def __init__(self, location: str | None, application: str) -> None:
        settings = types.SimpleNamespace(equals=lambda _other: True)
        properties: Any = types.SimpleNamespace(clone=lambda: properties)
        context = _answers(getLocalProperties=properties)
        context.setLocalProperties = lambda _properties: None
        self.conf = types.SimpleNamespace(get=lambda _name, default: location or default)
        self.streams = types.SimpleNamespace(resetTerminated=lambda: None)
        self.sparkContext = types.SimpleNamespace(
            applicationId=application, getConf=lambda: types.SimpleNamespace(getAll=list), _jsc=_answers(sc=context)
        )
        self._jsparkSession = _answers(
            sessionState=_answers(conf=_answers(getAllConfs=settings)), cloneSession=_answers(conf=self.conf)
        )


class FakeWriter:
    """A DataStreamWriter of an application, with the session's default checkpoint location."""

    def __init__(self, location: str | None = None, *, application: str = "app-1", **fields: Any) -> None:
        self._spark = FakeSession(location, application)
        plan = _answers(logical=_answers(toString=fields.pop("plan", "Relation[value#1L]")))
        self._df = types.SimpleNamespace(writeStream=self, _jdf=_answers(queryExecution=plan))
        self.options = JavaOptions(fields.pop("options", {}))
        private = {"extraOptions": self.options, "source": "console", "outputMode": "Append"} | fields
        found = {
            name: types.SimpleNamespace(setAccessible=lambda _on: None, get=lambda _of, value=value: value)
            for name, value in private.items()
        }
        self._jwrite = types.SimpleNamespace(
            getClass=lambda: types.SimpleNamespace(getDeclaredField=lambda name: found[name], getDeclaredFields=list)
        )

    def option(self, key: str, value: str) -> FakeWriter:
        """Set an option."""
        self.options[key] = value
        return self


class FakeQuery:
    """A StreamingQuery."""

    def __init__(self, id_: str = "q", *, checkpoint: str = "file:/ck", name: str | None = None) -> None:
        self.id = id_
        self.runId = f"run-{id_}"
        self.name = name
        self.isActive = True
        self.status = {"message": "Processing new data", "isTriggerActive": True}
        self.lastProgress: dict[str, Any] | None = None
        self.failure: object | None = None
        self._jsq = types.SimpleNamespace(
            streamingQuery=lambda: types.SimpleNamespace(resolvedCheckpointRoot=lambda: checkpoint)
        )

    def exception(self) -> object | None:
        """Return why the query failed."""
        return self.failure


class FakeJob:
    """A Spark job of a batch, as the status store has it."""

    def __init__(
        self, batch_id: int, done: int, tasks: int, started: float = 0.0, skipped: int = 0, stages: Sequence[int] = ()
    ) -> None:
        self._batch, self._done, self._tasks, self._started, self._skipped = batch_id, done, tasks, started, skipped
        self._stages = stages

    def stageIds(self) -> Any:
        """Return the numbers of its stages."""
        return scala_seq(self._stages)

    def description(self) -> JavaOption:
        """Return the description that the execution gives its jobs."""
        return JavaOption(f"name<br/>id = q<br/>runId = r<br/>batch = {self._batch}")

    def submissionTime(self) -> JavaOption:
        """Return a java.util.Date."""
        return JavaOption(types.SimpleNamespace(getTime=lambda: self._started * 1000))

    def numCompletedTasks(self) -> int:
        """Return the finished tasks."""
        return self._done

    def numTasks(self) -> int:
        """Return all tasks, skipped ones included."""
        return self._tasks

    def numSkippedTasks(self) -> int:
        """Return the tasks whose output was there already."""
        return self._skipped


class FakeContext:
    """A SparkContext with a status store: jobs by number, which all belong to one query, and finished tasks.

    `finished` counts them by executor, `running` by running stage.
    """

    def __init__(
        self,
        jobs: Mapping[int, FakeJob] | None = None,
        finished: Sequence[int] = (),
        running: Mapping[int, int] | None = None,
    ) -> None:
        self.jobs = dict(jobs or {})
        self.finished = list(finished)
        self.running = dict(running or {})
        store = types.SimpleNamespace(
            job=lambda number: self.jobs[number],
            executorList=lambda _active: scala_seq([_answers(completedTasks=count) for count in self.finished]),
            activeStages=lambda: scala_seq(
                [_answers(stageId=stage, numCompleteTasks=count) for stage, count in self.running.items()]
            ),
        )
        tracker = types.SimpleNamespace(getJobIdsForGroup=lambda _group: sorted(self.jobs, reverse=True))
        spark = types.SimpleNamespace(statusStore=lambda: store, statusTracker=lambda: tracker)
        self._jsc = types.SimpleNamespace(sc=lambda: spark)
