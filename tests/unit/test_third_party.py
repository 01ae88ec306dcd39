"""Policies of other packages: what is wrong with one is said with its name, and costs nobody else anything."""

from __future__ import annotations

import importlib
import logging
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from tests.support.events import job, observed, steady
from tests.support.policy_packages import put_package, put_policy
from tidegate.cli import app
from tidegate.cli.expected import problem_of
from tidegate.engine.engine import Engine
from tidegate.engine.options import BadOption
from tidegate.engine.state import JobState
from tidegate.engine.third_party import PolicyFailed
from tidegate.installed import GROUP, engine
from tidegate.lab.compare import setting_of
from tidegate.lab.suite import UnknownName, cells
from tidegate.policies.hpa import Hpa
from tidegate.whatif.engine_child import engine_at

PAGE = Path(__file__).parents[2] / "docs/how-to/own-policy.md"
OURS = set(engine().policies)
Install = Callable[..., Engine]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs packages with a policy each, and returns the engine that finds them; it may be called once."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(*packages: str, point: str = "mine", module: str = "{package}_policy", **parts: str) -> Engine:
        for package in packages or ("acme",):
            monkeypatch.delitem(sys.modules, f"{package}_policy", raising=False)
            put_policy(tmp_path, package, f"{point} = {module.format(package=package)}:Mine", **parts)
        importlib.invalidate_caches()
        return engine.__wrapped__()  # the engine is kept for the process

    return made


def problems(made: Engine, name: str = "mine", **options: Any) -> str:
    """Return what is wrong with a spec that names a policy; "" if nothing is."""
    return "; ".join(made.check(job(policy=name, policy_options=options)))


def propose(made: Engine, seconds: int = 6) -> Any:
    """Let the policy propose on snapshots of a busy job; return the last decision."""
    state, spec = JobState.new(), job(policy="mine", policy_options={})
    for shot in steady(seconds, rate=800, capacity=400):
        state, decision = made.step(state, shot, spec, observed(shot))
    return decision


def test_a_policy_of_another_package_decides(install: Install) -> None:
    """It is known by its name, takes options, remembers, and its reason is in the decision."""
    made = install()
    assert set(made.policies) == OURS | {"mine"}
    assert problems(made) == ""
    assert "scaling.policy_options.step: must be a whole number, found 'x'" in problems(made, step="x")
    assert propose(made).trail[0].sentence.startswith("1 more, by ")


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"module": "no_such_module"}, "ModuleNotFoundError: No module named 'no_such_module'"),
        ({"before": "raise SystemExit(3)"}, "SystemExit: 3"),
        ({"before": "import pandas_of_another_age"}, "No module named 'pandas_of_another_age'"),
        ({"name": "yours"}, "its entry point is called 'mine', and its class has the name 'yours'"),
        ({"window": "60.0"}, "the field window_seconds of Options must be declared with option(…)"),
        ({"reasons": "{}; del reasons"}, "has no reasons"),
        ({"reasons": "{'COOLDOWN': Reason('something else')}"}, "reason code COOLDOWN already means something else"),
        ({"point": "tide", "name": "tide"}, "Tidegate has a policy of that name"),
        ({"point": "hpa", "name": "hpa"}, "Tidegate has a policy of that name"),
    ],
)
def test_one_that_cannot_be_used_is_named_and_all_others_work(
    install: Install, caplog: pytest.LogCaptureFixture, parts: dict[str, str], why: str
) -> None:
    """A warning names the policy, its package and the reason. Other policies decide, and ours are never replaced."""
    with caplog.at_level(logging.WARNING):
        made = install("acme", **parts)
    (warned,) = [record.getMessage() for record in caplog.records]
    assert warned.startswith(f"policy {parts.get('point', 'mine')!r} of acme 1.5 cannot be used: ")
    assert why in warned
    assert set(made.policies) == OURS
    assert made.policies["hpa"] is engine().policies["hpa"]
    assert problems(made, "hpa") == ""
    if "point" not in parts:
        assert problems(made) == (
            f"scaling.policy: {warned}. Until that is corrected, choose from {', '.join(sorted(OURS))}"
        )


def test_a_default_of_its_own_that_a_guard_refuses_is_a_problem_of_the_spec() -> None:
    """A spec that `tidegate apply` takes can be decided on; one that sets the option itself can."""

    class Own(Hpa):
        """Would not have a guard limit its changes."""

        guard_defaults: ClassVar = {"cooldown": {"up_seconds": -1.0}}

    made, shot = Engine({"own": Own}), steady(1, rate=800, capacity=400)[0]
    spec = job(policy="own", policy_options={}, guards={})
    assert made.check(spec) == ["scaling.guards.cooldown.up_seconds: must be at least 0, found -1.0"]
    with pytest.raises(BadOption):
        made.step(JobState.new(), shot, spec, observed(shot))
    spec = job(policy="own", policy_options={}, guards={"cooldown": {"up_seconds": 5}})
    assert made.check(spec) == []
    made.step(JobState.new(), shot, spec, observed(shot))


def test_a_command_that_is_given_its_name_says_the_reason(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None calls a policy unknown that is installed."""
    made = install("acme", module="no_such_module")
    for module in ("cli.simulate", "cli.backtest", "lab.suite", "lab.compare"):
        monkeypatch.setattr(f"tidegate.{module}.engine", lambda: made)
    reason = "policy 'mine' of acme 1.5 cannot be used: ModuleNotFoundError"
    spec = tmp_path / "job.yaml"
    spec.write_text(job().model_dump_json(), "utf-8")
    for command in (["simulate", "--spec", str(spec), "--load", "step"], ["backtest", "load.csv"]):
        said = CliRunner().invoke(app, [*command, "--policy", "mine"])
        assert reason in said.output
    with pytest.raises(UnknownName, match=reason):
        cells(["mine"], [])
    with pytest.raises(UnknownName, match=reason):
        setting_of("mine")


def test_two_packages_with_one_name_are_both_named(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    """Which of them would decide depends on the order of the path, so neither does."""
    made = install("acme", "umbrella")
    assert "policy 'mine' of acme 1.5 and umbrella 1.5 cannot be used: they have the same name" in caplog.text
    assert "uninstall all but one" in problems(made)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"post_init": "raise TypeError('what a day')"}, "scaling.policy_options: TypeError: what a day"),
        ({"post_init": "raise ValueError('step: is odd')"}, "scaling.policy_options.step: is odd"),
        ({"window": "option(None, 'the window')"}, "of acme 1.5 refuses its options: window_seconds must be a number"),
        ({"option": "size: tuple[int, ...] = option(3, '')"}, "scaling.policy_options.size: Input should be a valid"),
    ],
)
def test_options_that_it_cannot_take_are_a_problem_of_the_spec(
    install: Install, parts: dict[str, str], why: str
) -> None:
    """The spec is refused like any other with a bad option; nothing else ends."""
    given = {"size": "x"} if "option" in parts else {}
    found = problems(install("acme", **parts), **given)
    assert why in found
    assert found.count("scaling.") == 1


@pytest.mark.parametrize(
    ("returns", "why"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero ("),
        ("exit(3)", "SystemExit: 3"),
        ("None", "it must return a Proposal, found None"),
        ("good._replace(size=math.nan)", "the size must be an int, and at least 0, found nan"),
        ("good._replace(size=2.5)", "the size must be an int, and at least 0, found 2.5"),
        ("good._replace(size=-1)", "the size must be an int, and at least 0, found -1"),
        ("good._replace(size=True)", "the size must be an int, and at least 0, found True"),
        ("good._replace(size=10**30)", "the size must be an int, and at least 0, found 1000"),
        ("good._replace(code='TYPO')", "the code 'TYPO' is not in its reasons, which are MINE_MORE"),
        ("good._replace(numbers={'step': 1})", "the sentence of MINE_MORE needs the value 'seen'"),
        ("good._replace(numbers={'step': 1, 'seen': {2}})", "the value 'seen' must be a text or a finite number"),
        ("good._replace(numbers={'step': 1, 'seen': math.inf})", "the value 'seen' must be a text or a finite number"),
        ("good._replace(expectation=3)", "the expectation must be an Expectation, found 3"),
        ("good._replace(capacity=math.nan)", "capacity must be a finite number, found nan"),
        ("good._replace(memory={'seen': 1})", "the memory must be a Memory, found {'seen': 1}"),
        ("good._replace(memory=Memory({1}))", "the memory has no form in JSON"),
        ("good._replace(memory=Memory(math.nan))", "the memory has no form in JSON"),
        ("good._replace(memory=Memory('one'))", "the memory has no form in JSON"),
    ],
)
def test_what_no_decision_can_hold_fails_with_the_name_of_the_policy(install: Install, returns: str, why: str) -> None:
    """The error names policy, package and method. The command shows it in a line, and the decider as a dead letter."""
    with pytest.raises(PolicyFailed) as failed:
        propose(install("acme", returns=returns))
    text = str(failed.value)
    assert text.startswith("policy 'mine' of acme 1.5 failed in propose: ")
    assert why in text
    shown = problem_of(failed.value)
    assert shown is not None
    assert (str(shown), shown.hint) == (text, "tell the authors of that package, or choose another policy")


def test_a_memory_after_an_order_is_checked_too(install: Install) -> None:
    """What `ordered` returns is stored, so it must survive a restart as well."""
    with pytest.raises(PolicyFailed, match=r"failed in ordered: the memory must be a Memory, found None"):
        propose(install("acme", ordered="None"))


def test_a_large_size_and_none_are_for_the_guards(install: Install) -> None:
    """The bounds of the spec make a permitted size of 0 slots and of a billion, as they do for our policies."""
    made = install("acme", returns="good._replace(size=0 if memory.seen % 2 else 10**9)")
    decision = propose(made)
    assert decision.proposed_parallelism in {0, 10**9}
    assert 1 <= decision.final_parallelism <= 16


def test_the_package_of_the_docs_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on how to write a policy shows a whole one: it is found, takes options, and scales a job up and down."""
    files = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL))
    project = tomllib.loads(files["pyproject.toml"])["project"]
    (named,) = project["entry-points"][GROUP].items()
    place = " = ".join(named)
    put_package(tmp_path, project["name"], project["version"], place, "acme_policies", files["acme_policies.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    made = engine.__wrapped__()
    state, spec, codes = JobState.new(), job(policy="headroom", policy_options={"settle_seconds": 20.0}), []
    for shot in [*steady(4, rate=800, capacity=400), *steady(20, rate=80, capacity=400, first=60)]:
        state, decision = made.step(state, shot, spec, observed(shot))
        codes.append((decision.trail[0].code, decision.final_parallelism))
    assert ("HEADROOM_SIZE", 8) in codes or ("HEADROOM_SIZE", 10) in codes
    assert "HEADROOM_UNKNOWN" in {code for code, _ in codes}
    assert "HEADROOM_WAITS" in {code for code, _ in codes}
    assert min(size for code, size in codes if code == "HEADROOM_SIZE") < 4


@pytest.mark.parametrize(
    ("parts", "known", "why"),
    [
        ({}, {"hpa", "mine", "tide"}, None),
        ({"before": "raise SystemExit(3)"}, {"hpa", "tide"}, "SystemExit: 3"),
        ({"reasons": "{'COOLDOWN': Reason('something else')}"}, {"hpa", "tide"}, "ValueError: reason code COOLDOWN"),
        ({"point": "hpa", "name": "hpa"}, {"hpa", "tide"}, None),
    ],
    ids=["a good one", "a broken one", "one that the engine refuses", "one with the name of ours"],
)
def test_another_engine_decides_with_the_policies_of_other_packages(
    install: Install, tmp_path: Path, parts: dict[str, str], known: set[str], why: str | None
) -> None:
    """A checkout names its own policies in its pyproject.toml; those of other packages are the installed ones."""
    install("acme", **parts)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").write_text(
        '[project.entry-points."tidegate.policies"]\nhpa = "tidegate.policies.hpa:Hpa"\n', "utf-8"
    )
    made, refused = engine_at(checkout, Engine)
    assert (set(made.policies), set(refused)) == (known, set() if why is None else {"mine"})
    assert made.policies["hpa"] is Hpa
    assert why is None or refused["mine"].startswith(f"policy 'mine' of acme 1.5 cannot be used: {why}")
