"""Says why something failed: the root cause of an exception's text or a log's last errors, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MAX_CHARS = 1000
"""No explanation is longer."""

_SENSITIVE = r"(?:secret|passw(?:or)?d|token|credential|sasl\.jaas|access[.\-_]?key)[\w.\-]{0,40}"
_SENSITIVE_KEY = re.compile(_SENSITIVE, re.IGNORECASE)
"""In a key whose value is secret; Spark's own `spark.redaction.regex` knows fewer."""
_ASSIGNED = re.compile(
    rf"""(?P<key>{_SENSITIVE}["']?(?:\s*(?:=|:|->)\s*|,))(?P<value>"[^"]*"|'[^']*'|[^\s,;&)}}\]]+)""", re.IGNORECASE
)
_JAAS = re.compile(r"\b\w*LoginModule\s+(?:required|requisite|sufficient|optional)\b[^;\n]*;?")
_IN_URL = re.compile(r"(?<=://)[^\s/:@]*:[^\s/]*@")
_AUTHORIZATION = re.compile(r"\b(bearer|basic)\s+[\w.~+/\-]{8,}=*", re.IGNORECASE)
_HIDDEN = "*****"
_SHORTEST_SECRET = 4
"""A shorter value would hide ordinary words."""

_ERROR = re.compile(r"(?:[\w$]+\.)*[A-Z][\w$]*(?:Error|Exception|Interrupt|Throwable|Failure)\b(?::\s|$)")
"""How a line starts that names an exception, in Python or Java."""
_LOGGED = re.compile(r"^(?:\S+ )?\S+ (?:ERROR|FATAL) |\btidegate launcher: |^\S*: error: |^Error: |^Exception in ")
_STREAM_FAILED = re.compile(r"^.*\] terminated with exception: (.+?)(?: SQLSTATE: \w+)?$")
"""What Spark says of any query that fails, around the reason."""
_MISSING = re.compile(
    r"ClassNotFoundException|NoClassDefFoundError|DATA_SOURCE_NOT_FOUND|Failed to find (?:the )?data source"
    r"|[Cc]annot find catalog plugin class|ModuleNotFoundError|TypeError: 'JavaPackage' object"
)
"""What Java, Spark and Python say if a jar or a package is not there."""
_CALL_FAILED = re.compile(r"py4j\.protocol\.Py4JJavaError: An error occurred while calling ")
"""What py4j says of any call that fails, before the exception of the JVM."""
_EXECUTOR = re.compile(
    r"Granted executor ID |Registered executor |Executor updated: \S+ is now (?P<end>(?:EXITED|FAILED|LOST).*)"
)
"""What a driver on a standalone cluster says of its executors."""
_NO_RESOURCES = "has not accepted any resources"
"""What any driver says as long as it has tasks and no executor."""
_NO_EXECUTOR = (
    "Spark has no executor for the job. Either no worker has as much free as one needs "
    "(application.executor_cores, executor_memory_mb), or executors end as soon as they start, and their logs say why."
)
_STACK = re.compile(r"^\s+(?:at |\.\.\. \d+ more|File \")|^\t")


def secrets_of(*settings: Mapping[str, str] | Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the values of the settings whose names look secret."""
    pairs = [pair for one in settings for pair in (one.items() if isinstance(one, Mapping) else one)]
    return frozenset(value for key, value in pairs if _SENSITIVE_KEY.search(key) and len(value) >= _SHORTEST_SECRET)


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without passwords: the given ones, and whatever is written as one."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    text = _JAAS.sub(_HIDDEN, text)
    text = _IN_URL.sub(f"{_HIDDEN}@", text)
    text = _AUTHORIZATION.sub(rf"\1 {_HIDDEN}", text)
    return _ASSIGNED.sub(rf"\g<key>{_HIDDEN}", text)


def root_cause(text: str) -> str:
    """Return the line of a stack trace that says what went wrong first, and the line that says what it led to."""
    # py4j puts a colon before the exception of the JVM
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip() and not _STACK.match(line)]
    if not lines:
        return text.strip()
    top = _STREAM_FAILED.sub(r"\1", lines[0])
    caused = [line.partition("Caused by: ")[2] for line in lines if line.startswith("Caused by: ")]
    raised = [line for line in lines[1:] if _ERROR.match(line)]
    # Java puts the root at the end of its chain, Python at the end of the traceback
    root = _telling(caused) if caused else raised[-1] if raised else top
    if raised and raised[0] != root and _CALL_FAILED.match(top):
        top = raised[0]
    return root if root in top or top.startswith("Traceback") else f"{root} ({top})"


def _telling(caused: list[str]) -> str:
    """Return the last of a chain of causes, or the one before if it says the same and more."""
    root = caused[-1]
    for cause in caused[-2::-1]:
        if (root.partition(": ")[2] or root) not in cause:
            break
        root = cause
    return root


def is_missing(text: str) -> bool:
    """Return whether something failed because a jar or a package is not there."""
    return bool(_MISSING.search(text))


def last_errors(log: str) -> str:
    """Return what the end of a driver's log says went wrong; an empty text if it names no error, and no lack."""
    lines = log.splitlines()
    stacks = [number for number, line in enumerate(lines) if line.startswith("Traceback ")]
    if stacks:
        return root_cause("\n".join(lines[stacks[-1] :]))
    named = [number for number, line in enumerate(lines) if _ERROR.match(line) or _LOGGED.search(line)]
    caused = [number for number, line in enumerate(lines) if line.startswith("Caused by: ")]
    if caused:
        before = [number for number in named if number < caused[-1]]
        first = before[-1] if before else caused[-1]
        return root_cause("\n".join(lines[first : caused[-1] + 1]))
    return lines[named[-1]].strip() if named else _missing_executors(lines)


def _missing_executors(lines: list[str]) -> str:
    """Return why a driver has no executors, as its log tells; an empty text if it has some, or does not say."""
    ends, has_none = list[str](), False
    for line in lines:
        if (of := _EXECUTOR.search(line)) is not None:
            has_none = False
            ends += [of["end"]] if of["end"] else []
        elif _NO_RESOURCES in line:
            has_none = True
    if ends:
        return f"Executors have ended, the last of {len(ends)} as {ends[-1]}. Their logs on the workers say why."
    return _NO_EXECUTOR if has_none else ""


def explanation(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the root cause of a failure in one line of at most `MAX_CHARS` characters, without secrets."""
    # secrets go first: a cut could leave half of one
    said = " ".join(root_cause(without_secrets(text, secrets)).split())
    return said if len(said) <= MAX_CHARS else f"{said[: MAX_CHARS - 1]}…"
