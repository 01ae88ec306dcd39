"""A failure in one line: the root cause first, and no secrets."""

from __future__ import annotations

import pytest

from tidegate.launcher.reports.failure import MAX_CHARS, explanation, last_errors, secrets_of, without_secrets

QUERY = """\
pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Query [id = 1, runId = 2] terminated with \
exception: org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this topic. \
SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1, runId = 2]
Current State: ACTIVE
"""
JAVA = """\
26/11/22 11:00:00 INFO SparkContext: Running Spark version 4.2.0
26/11/22 11:00:01 ERROR SparkContext: Error initializing SparkContext.
org.apache.spark.SparkException: Could not start
\tat org.apache.spark.SparkContext.<init>(SparkContext.scala:1)
Caused by: java.io.IOException: first
\tat x.Y.z(Y.scala:1)
Caused by: java.io.FileNotFoundException: File file:/events does not exist
\t... 19 more
26/11/22 11:00:02 INFO ShutdownHookManager: Shutdown hook called
"""
PYTHON = """\
26/11/22 11:00:01 WARN Utils: nothing
Traceback (most recent call last):
  File "/jobs/rates.py", line 3, in <module>
    1 / 0
    ~~^~~
ZeroDivisionError: division by zero
26/11/22 11:00:02 INFO ShutdownHookManager: Shutdown hook called
"""


def test_a_failed_query_is_explained_by_its_first_line() -> None:
    """Spark's message names the cause; the query's plan does not follow."""
    assert explanation(QUERY) == (
        "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this topic."
    )


def test_a_failed_task_is_explained_by_its_own_exception() -> None:
    """An error in a Python function comes before what Spark made of it."""
    text = (
        "x.StreamingQueryException: [STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted:"
        " PythonException: Traceback (most recent call last):\n"
        '  File "/jobs/rates.py", line 3, in work\nZeroDivisionError: division by zero\n\n\tat org.x.Y(Y.scala:1)\n'
    )
    assert explanation(text).startswith("ZeroDivisionError: division by zero (Job aborted: PythonException")


def test_the_root_cause_comes_first() -> None:
    """Of a chain of Java exceptions the last one says what is wrong; of a Python traceback, too."""
    said = last_errors(JAVA)
    assert said.startswith("java.io.FileNotFoundException: File file:/events does not exist (")
    assert last_errors(PYTHON) == "ZeroDivisionError: division by zero"


def test_an_exception_of_the_jvm_is_found_in_what_py4j_says() -> None:
    """A session that cannot start, because the folder of the event log is missing."""
    text = (
        "py4j.protocol.Py4JJavaError: An error occurred while calling None.org.apache.spark.JavaSparkContext.\n"
        ": java.io.FileNotFoundException: File file:/events does not exist\n\tat org.x.Y(Y.java:1)\n"
    )
    assert explanation(text).startswith("java.io.FileNotFoundException: File file:/events does not exist (py4j")


def test_a_cause_that_says_more_than_its_own_cause_is_told() -> None:
    """Java's last cause does not name the program that is not there."""
    text = (
        'Exception in thread "main" java.lang.reflect.InvocationTargetException\n\tat org.x.Y(Y.java:1)\n'
        'Caused by: java.io.IOException: Cannot run program "/no/python": error=2, No such file or directory\n'
        "\tat org.x.Y(Y.java:1)\nCaused by: java.io.IOException: error=2, No such file or directory\n"
    )
    assert explanation(text).startswith('java.io.IOException: Cannot run program "/no/python": error=2, No such file')


def test_a_call_into_the_jvm_is_explained_by_what_the_jvm_says() -> None:
    """Next to the root cause stands the exception that Spark made of it, not that some call has failed."""
    said = (
        "org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta."
    )
    text = (
        f"py4j.protocol.Py4JJavaError: An error occurred while calling o324.start.\n: {said}\n"
        "\tat org.x.Y(Y.java:1)\nCaused by: java.lang.ClassNotFoundException: delta.DefaultSource\n\t... 19 more\n"
    )
    assert explanation(text) == f"java.lang.ClassNotFoundException: delta.DefaultSource ({said})"


NO_RESOURCES = (
    "26/11/28 18:24:48 WARN TaskSchedulerImpl: Initial job has not accepted any resources; check your cluster UI to"
    " ensure that workers are registered and have sufficient resources\n"
)
GRANTED = "26/11/28 18:24:49 INFO StandaloneSchedulerBackend: Granted executor ID app-1/0 on hostPort 10.0.0.1:1\n"
EXITED = (
    "26/11/28 18:24:50 INFO StandaloneAppClient$ClientEndpoint: Executor updated: app-1/0 is now EXITED"
    " (Command exited with code 1)\n"
)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", ""),
        ("26/11/22 11:00:00 INFO SparkContext: fine\nthe script prints\n", ""),
        ("launcher: error: script 'x': there is no such file on this machine\n", "there is no such file"),
        ("Error: Failed to load class org.X.\nlog4j: x\n", "Failed to load class"),
        ("2026-11-22T11:00:00+00:00 tidegate launcher: run 4-1 must not start a query: no\n", "run 4-1 must not"),
        (f"{PYTHON}26/11/22 11:00:03 ERROR Utils: Aborting task\n", "ZeroDivisionError: division by zero"),
        ("java.lang.OutOfMemoryError: Java heap space\n", "Java heap space"),
        ("\tat org.x.Y(Y.java:1)\nCaused by: java.io.IOException: the log begins here\n", "the log begins here"),
        (NO_RESOURCES, "no worker has as much free as one needs"),
        (f"{NO_RESOURCES}{GRANTED}", ""),
        (f"{GRANTED}{EXITED}{GRANTED}{EXITED}{NO_RESOURCES}", "the last of 2 as EXITED (Command exited with code 1)."),
    ],
)
def test_the_last_errors_of_a_log(log: str, said: str) -> None:
    """A log without an error says nothing."""
    assert said in last_errors(log)
    assert bool(last_errors(log)) is bool(said)


@pytest.mark.parametrize(
    "text",
    [
        "spark.ssl.keyPassword=hunter2 is wrong",
        'options {"kafka.sasl.password": "hunter2", "a": "b"}',
        "kafka.sasl.jaas.config -> org.x.ScramLoginModule required username='me' password='hunter2';",
        "ScramLoginModule required username=me secretish hunter2;",
        "cannot reach https://me:hunter2@host:9092/path",
        "cannot reach redis://:hunter2@host",
        "Authorization: Bearer hunter2hunter2",
        "fs.s3a.access.key=hunter2, fs.s3a.secret.key: hunter2",
        "(spark.my.token,hunter2)",
        "MY_CREDENTIALS=hunter2",
    ],
)
def test_secrets_are_removed(text: str) -> None:
    """Whatever is written as a password does not reach a result."""
    assert "hunter2" not in without_secrets(text)
    assert "hunter2" not in explanation(f"Caused by: x.YException: {text}")


def test_the_jobs_own_secrets_are_removed_wherever_they_are() -> None:
    """The value of a setting whose name looks secret is removed, however the message has it."""
    secrets = secrets_of(
        {"DB_PASSWORD": "hunter2", "HOME": "/root", "EMPTY_TOKEN": ""}, [("spark.my.secret", "s3cr3t")]
    )
    assert secrets == {"hunter2", "s3cr3t"}
    assert explanation("no login with hunter2 or s3cr3t in /root", secrets) == "no login with ***** or ***** in /root"
    assert explanation("no login with hunter2-and-more", {"hunter2", "hunter2-and-more"}) == "no login with *****"


def test_an_explanation_is_short() -> None:
    """A message of megabytes becomes one line."""
    assert len(explanation("x" * 5_000_000)) == MAX_CHARS
    assert "\n" not in explanation("one\ntwo")
    assert explanation("\n\tat org.x.Y(Y.java:1)\nCaused by: x.YException: lost\n") == "x.YException: lost"


def test_ordinary_words_are_kept() -> None:
    """Text about tokens and passwords is no secret."""
    assert without_secrets("Unexpected token in line 3; no password was given") == (
        "Unexpected token in line 3; no password was given"
    )
