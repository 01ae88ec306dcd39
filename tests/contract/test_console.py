"""The console over a simulated fleet: what its pages show, who may change what, and what reaches the topic."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from pydantic import ValidationError
from starlette.testclient import TestClient

import tidegate.console
from tests.support.events import job
from tests.support.fleets import SimulatedTopics, decision, simulated_topics, spec
from tests.support.set_clock import SetClock
from tidegate.client import Unreachable
from tidegate.console.access import Access
from tidegate.console.app import build
from tidegate.console.pages import decision_page
from tidegate.console.server import introduction
from tidegate.console.settings import ConsoleSettings
from tidegate.events.decision import Status, TrailEntry
from tidegate.events.invalid import first_problem
from tidegate.events.job import Mode
from tidegate.operate import SpecRefused
from tidegate.runtime.producer import NotDelivered

NOW = datetime(2026, 3, 1, 13, 0, 5, tzinfo=UTC)
ADA, BOB = "ada-operates-this-fleet", "bob-may-look-at-it"
VENDOR = Path(tidegate.console.__file__).parent / "static/vendor"


def settings(**more: object) -> ConsoleSettings:
    """Return settings in which ada is an operator."""
    return ConsoleSettings(**{"console_operators": {"ada": ADA}, **more})  # type: ignore[arg-type]


def client(topics: SimulatedTopics, of: ConsoleSettings | None = None) -> TestClient:
    """Return a browser without a session."""
    of = of or settings()
    app = build(of, topics, Access(of), "a key", lambda: NOW)
    return TestClient(app, base_url="http://127.0.0.1:8090", follow_redirects=False)


@pytest.fixture(scope="module")
def recorded() -> SimulatedTopics:
    """A simulated fleet with its last hour."""
    return simulated_topics(NOW - timedelta(seconds=5))


@pytest.fixture
def topics() -> SimulatedTopics:
    """One job with two decisions."""
    made = SimulatedTopics()
    made.fleet.take_spec(job())
    for seconds in (20, 10):
        made.fleet.take(decision(job(), NOW - timedelta(seconds=seconds)))
    return made


@pytest.fixture
def ada(topics: SimulatedTopics) -> Iterator[TestClient]:
    """A browser in which ada has signed in."""
    with client(topics) as browser:
        assert browser.post("/sign-in", data={"token": ADA}).headers["location"] == "/"
        yield browser


def form_token(browser: TestClient) -> str:
    """Return the token in the form of a job's page."""
    found = re.search(r'name="form" value="([^"]+)"', browser.get("/jobs/rates").text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("path", ["/", "/pools", "/jobs/orders", "/jobs/orders/what-if", "/sign-in"])
def test_each_page_is_whole_and_loads_nothing_from_elsewhere(recorded: SimulatedTopics, path: str) -> None:
    """A page has a title, a heading, its own scripts only, and headers that allow no others."""
    answer = client(recorded).get(path)
    assert answer.status_code == 200
    assert answer.text.count("<h1>") == 1
    assert "· Tidegate</title>" in answer.text
    assert set(re.findall(r'(?:src|href)="(\w+:|//)', answer.text)) == set()
    assert not re.search(r"<script(?![^>]*(src=|application/json))|\son\w+=|style=", answer.text)
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-frame-options"] == "DENY"


def test_the_fleet_shows_each_job_with_its_figures_and_its_reason(recorded: SimulatedTopics) -> None:
    """Every job is in the list, with its state in words and the sentence of its newest decision."""
    text = client(recorded).get("/").text
    for each in recorded.fleet:
        assert each.decision is not None
        assert f'href="/jobs/{each.spec.job_id}"' in text
        assert each.decision.sentence in text
    assert "5 jobs" in text
    assert re.search(r"newest decision <time [^>]*>13:00:00<", text), "old figures can be told from new ones"


def test_the_fleet_can_be_searched_and_paged() -> None:
    """Of many jobs, a page shows a hundred, a search only those that fit, and a state only those in it."""
    topics = SimulatedTopics()
    for number in range(250):
        topics.fleet.take_spec(spec(number))
        late = {"status": Status.LATE} if number == 7 else {}
        topics.fleet.take(decision(spec(number), NOW).model_copy(update=late))
    browser = client(topics)
    first = browser.get("/").text
    assert first.count('<tr id="job-') == 100
    assert "Page 1 of 3" in first
    assert first.index("job-0007") < first.index("job-0000"), "a late job comes first"
    assert browser.get("/?page=3").text.count('<tr id="job-') == 50
    assert browser.get("/?page=99").text.count('<tr id="job-') == 50
    assert re.findall(r'<tr id="job-([^"]+)', browser.get("/?q=0042").text) == ["job-0042"]
    assert re.findall(r'<tr id="job-([^"]+)', browser.get("/?state=late").text) == ["job-0007"]
    assert "No job fits" in browser.get("/?q=nothing").text


def test_a_silent_job_is_never_shown_as_fine(topics: SimulatedTopics) -> None:
    """Old figures are called old, on the job's page and in the fleet."""
    of = settings()
    app = build(of, topics, Access(of), "a key", lambda: NOW + timedelta(minutes=5))
    late = TestClient(app, base_url="http://127.0.0.1:8090")
    assert "silent" in late.get("/").text
    assert "the figures below are old" in late.get("/jobs/rates").text
    assert "the figures below are old" not in client(topics).get("/jobs/rates").text


def test_a_time_of_another_day_has_its_date(topics: SimulatedTopics) -> None:
    """A job that has been silent since yesterday does not look as if it had just been decided on."""
    of = settings()
    app = build(of, topics, Access(of), "a key", lambda: NOW + timedelta(days=1))
    late = TestClient(app, base_url="http://127.0.0.1:8090")
    for page in ("/", "/jobs/rates"):
        assert ">2026-03-01 12:59:55</time>" in late.get(page).text
        assert "2026-03-01 12:59" not in client(topics).get(page).text
    assert '<th scope="row">2026-03-01 12:59:55</th>' in late.get("/jobs/rates").text


def test_no_job_is_called_silent_while_the_topics_are_still_read(topics: SimulatedTopics) -> None:
    """In its first seconds, a console has no decision yet: nobody is sent to check the services because of that."""
    of = settings()
    topics.fleet.take_spec(spec(7))
    app = build(of, topics, Access(of), "a key", lambda: NOW + timedelta(minutes=5))
    early = TestClient(app, base_url="http://127.0.0.1:8090")
    asked = ("/jobs/rates", "/jobs/job-0007")
    assert all('id="silent"' in early.get(page).text for page in asked)
    topics.state = "loading"
    for page in asked:
        text = early.get(page).text
        assert "Reading the last hours" in text
        assert 'id="silent"' not in text


def test_the_page_of_a_job_has_its_last_hours(topics: SimulatedTopics) -> None:
    """They are read when it is opened: those of all jobs would take minutes."""
    browser = client(topics)
    for page in ("/", "/pools", "/jobs/rates", "/jobs/nobody"):
        browser.get(page)
    assert topics.recalled == ["rates", "nobody"]


def test_a_job_shows_its_timeline_as_charts_and_as_a_table(recorded: SimulatedTopics) -> None:
    """Each chart has its words next to it, and the table has the newest figures."""
    text = client(recorded).get("/jobs/orders").text
    assert re.findall(r'data-chart="(\w+)"', text) == ["rate", "delay", "lag", "slots"]
    assert "objective 30 s" in text
    orders = recorded.fleet.get("orders")
    assert orders is not None
    assert orders.decision is not None
    assert f'<th scope="row">{orders.decision.decided_at:%H:%M:%S}</th>' in text
    assert "verified" in text


def test_what_a_chart_says_of_now_is_of_now() -> None:
    """A point of a long timeline stands for minutes and keeps their peak: one that is over is not "now"."""
    topics, end = SimulatedTopics(), 1081
    topics.fleet.take_spec(job())
    for step in range(end + 1):
        delay = 0.0 if step == end else 300.0
        topics.fleet.take(decision(job(), NOW - timedelta(seconds=10 * (end - step)), delay_seconds=delay))
    assert "Delay now 0 s, at most 300 s" in client(topics).get("/jobs/rates").text


def test_a_size_that_is_not_known_is_not_shown_as_none(ada: TestClient, topics: SimulatedTopics) -> None:
    """No chart drops to zero, and no form proposes zero, because nobody has said yet how many slots a job has."""
    entry = TrailEntry(by="engine", code="SIZE_UNKNOWN", before=0, after=0, sentence="The size is not known.")
    unknown = {"trail": (entry,), "current_parallelism": 0, "proposed_parallelism": 0, "final_parallelism": 0}
    newest = decision(job(), NOW).model_copy(update=unknown)
    topics.fleet.take(newest)
    text = ada.get("/jobs/rates").text
    assert "Size now unknown, at most 4 slots" in text
    assert 'aria-label="Slots" value=""' in text
    found = topics.fleet.get("rates")
    assert found is not None
    assert decision_page(found, newest, [], None)["size_now"] == "unknown"


def test_a_decision_shows_its_reasons_and_inputs(recorded: SimulatedTopics) -> None:
    """The page of a decision has every reason with its values, the measurements, the command and its results."""
    ordered = next(one for one in recorded.recordings["orders"].decisions if one.command is not None)
    text = client(recorded).get(f"/jobs/orders/decisions/{ordered.sequence}").text
    for entry in ordered.trail:
        assert entry.code in text
    assert ordered.decision_id in text
    assert "arrival rate" in text
    assert "Command: rescale" in text
    assert "accepted" in text
    assert client(recorded).get("/jobs/orders/decisions/1").status_code == 404


def test_pools_show_who_holds_the_slots(recorded: SimulatedTopics) -> None:
    """A pool has its total and its jobs, the largest first."""
    text = client(recorded).get("/pools").text
    assert "of <strong>40</strong> slots used" in text
    held = [int(slots) for slots in re.findall(r'</span></td><td class="n">(\d+)', text)]
    assert held == sorted(held, reverse=True)
    assert len(held) == 5


def test_what_if_compares_two_runs_of_the_same_hours(recorded: SimulatedTopics) -> None:
    """Another policy is simulated next to the present one, and its figures differ."""
    text = client(recorded).get("/jobs/orders/what-if?policy=threshold&hours=1").text
    assert " compared</h2>" in text
    rows = dict(re.findall(r'<th scope="row">([^<]+)</th><td>([^<]+)</td><td>(?:[^<]+)</td>', text))
    assert rows["policy"] == "tide"
    both = re.search(r'<th scope="row">cost</th><td>([^<]+)</td><td>([^<]+)</td>', text)
    assert both is not None
    assert both[1] != both[2]


def test_what_if_says_how_sure_it_is(recorded: SimulatedTopics) -> None:
    """From when on it is simulated, how far the twin is off on what really ran, and each other decision in words."""
    text = client(recorded).get("/jobs/orders/what-if?policy=threshold&hours=1").text
    assert "every change is the recorded one" in text
    assert "The twin predicts the recorded batches with a median error of " in text
    assert re.search(r"<strong>\d+ → \d+, what if \d+", text)
    charts = json.loads(text.partition('id="chart-data">')[2].partition("</script>")[0])
    assert [line["label"] for line in charts[0]["series"]] == ["recorded", "what if"]
    assert charts[0]["marks"][0]["label"] == "first different change"


def test_a_decision_says_what_would_change_it(recorded: SimulatedTopics) -> None:
    """Only when asked, because it takes a moment; what is not recorded is named."""
    ordered = next(one for one in recorded.recordings["orders"].decisions if one.command is not None)
    page = f"/jobs/orders/decisions/{ordered.sequence}"
    assert "It would have " not in client(recorded).get(page).text
    assert re.search(
        r"<li>It would have (grown|shrunk|stayed)[^<]+ if [^<]+</li>", client(recorded).get(f"{page}?change=1").text
    )
    kept = recorded.recordings["orders"].snapshots
    lost = replace(
        recorded, recordings={"orders": replace(recorded.recordings["orders"], snapshots=[*kept[:2], *kept[3:]])}
    )
    assert "not recorded: 1" in client(lost).get(f"{page}?change=1").text


def test_what_if_lists_the_options_of_the_policy(recorded: SimulatedTopics) -> None:
    """The form shows what can be set, of the chosen policy or of the job's own."""
    assert "<code>late_price</code>" in client(recorded).get("/jobs/orders/what-if").text
    text = client(recorded).get("/jobs/orders/what-if?policy=threshold").text
    assert "<code>late_price</code>" not in text
    assert "Options of threshold" in text


def test_what_if_with_the_same_spec_changes_nothing(recorded: SimulatedTopics) -> None:
    """The spec as it is, tried against itself, gives the same figures twice."""
    text = client(recorded).get("/jobs/orders/what-if?policy=tide&hours=1").text
    rows = re.findall(r'<th scope="row">[^<]+</th><td>([^<]+)</td><td>([^<]+)</td>', text)
    assert len(rows) >= 6
    assert all(first == second for first, second in rows)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("policy=nonsense", "nonsense"),
        ("policy=hpa&hours=99", "at most 24"),
        ("policy=hpa&options=what", "has no name or no value"),
        ("policy=hpa&options=unheard_of+%3D+1", "unheard_of"),
        ("policy=hpa&min_parallelism=9&max_parallelism=2", "min_parallelism"),
        ("policy=hpa&max_parallelism=many", "not a number"),
    ],
)
def test_a_what_if_that_cannot_be_tried_says_why(recorded: SimulatedTopics, query: str, says: str) -> None:
    """The form comes back with what is wrong."""
    answer = client(recorded).get(f"/jobs/orders/what-if?{query}")
    assert answer.status_code == 422
    assert says in answer.text


@pytest.mark.parametrize(("action", "mode"), [("pause", Mode.PAUSED), ("advise", Mode.ADVISE), ("resume", Mode.ACTIVE)])
def test_an_operator_changes_the_mode(ada: TestClient, topics: SimulatedTopics, action: str, mode: Mode) -> None:
    """The next version of the spec has the mode, the operator's name, and the reason."""
    sent = {"form": form_token(ada), "version": "1", "action": action, "reason": "the sink is being repaired"}
    answer = ada.post("/jobs/rates/change", data=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/rates")
    (made,) = topics.published
    assert (made.version, made.scaling.mode) == (2, mode)
    assert made.change is not None
    assert (made.change.by, made.change.reason, made.change.at) == ("ada", "the sink is being repaired", NOW)
    refreshed = ada.get("/jobs/rates", headers={"x-refresh": "1"}).text
    assert 'id="done"' not in refreshed, "the page that is left does not take the message away"
    text = ada.get("/jobs/rates").text
    assert "the sink is being repaired" in text
    assert 'id="done" data-still>rates is' in text


def test_an_operator_asks_for_a_size(ada: TestClient, topics: SimulatedTopics) -> None:
    """The request is in the next version, with its reason; sizes outside the limits are said to be."""
    sent = {"form": form_token(ada), "version": "1", "action": "scale", "slots": "60", "reason": "launch day"}
    assert ada.post("/jobs/rates/change", data=sent).status_code == 303
    (made,) = topics.published
    assert made.manual is not None
    assert (made.manual.parallelism, made.manual.reason) == (60, "launch day")
    assert "limits rates to 1 to 16 slots" in ada.get("/jobs/rates").text


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"reason": " "}, 422, "Give a reason"),
        ({"reason": "x" * 501}, 422, "reason"),
        ({"action": "explode"}, 422, "explode"),
        ({"action": "scale", "slots": "many"}, 422, "not a number"),
        ({"version": "0"}, 422, "has changed since"),
        ({"form": "guessed"}, 403, "out of date"),
        ({"form": ""}, 403, "out of date"),
    ],
)
def test_a_wrong_form_changes_nothing(
    ada: TestClient, topics: SimulatedTopics, change: dict[str, str], status: int, says: str
) -> None:
    """Nothing is published, and the page says what is wrong."""
    sent = {"form": form_token(ada), "version": "1", "action": "pause", "reason": "test"} | change
    answer = ada.post("/jobs/rates/change", data=sent)
    assert (answer.status_code, topics.published) == (status, [])
    assert says in answer.text


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("multipart/form-data; boundary=x; charset=punycode", "b-" + 30_000 * "a", 415),
        ("multipart/form-data; boundary=x; charset=unicode_escape", r"\ud800", 415),
        ("application/x-www-form-urlencoded", 2_000_000 * "a", 413),
    ],
)
@pytest.mark.parametrize("path", ["/sign-in", "/jobs/rates/change"])
def test_whoever_has_not_signed_in_cannot_keep_the_console_busy(
    topics: SimulatedTopics, path: str, kind: str, body: str, status: int
) -> None:
    """A form that our pages do not send, or that is too large, is refused before it is decoded."""
    field = f'--x\r\nContent-Disposition: form-data; name="token"\r\n\r\n{body}\r\n--x--\r\n'
    content = field if status == 415 else f"token={body}"
    answer = client(topics).post(path, content=content, headers={"content-type": kind})
    assert answer.status_code == status


def test_without_a_token_nothing_changes(topics: SimulatedTopics) -> None:
    """A request without a session is refused, and so is a guessed token."""
    sent = {"action": "pause", "reason": "test", "form": ""}
    browser = client(topics)
    assert browser.post("/jobs/rates/change", data=sent).status_code == 401
    wrong = {"authorization": "Bearer not-the-operators-token"}
    assert browser.post("/jobs/rates/change", data=sent, headers=wrong).status_code == 401
    assert browser.post("/sign-in", data={"token": "not-the-operators-token"}).status_code == 401
    assert topics.published == []


@pytest.mark.timeout(60)
def test_a_stream_ends_with_its_session(topics: SimulatedTopics, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that stays open tells nobody of changes once the session has ended."""
    monkeypatch.setattr("tidegate.console.app.STREAM_BEAT_SECONDS", 0.2)
    of, looks = settings(console_viewers={"bob": BOB}), count()
    app = build(of, topics, Access(of), "a key", lambda: NOW + timedelta(hours=4 * next(looks)))
    browser = TestClient(app, base_url="http://127.0.0.1:8090", follow_redirects=False)
    browser.post("/sign-in", data={"token": BOB})
    text = browser.get("/events").text
    assert re.fullmatch(r"event: changed\ndata: \d+\n\n", text), text


@pytest.mark.timeout(60)
def test_an_open_page_learns_that_its_figures_have_become_old(
    topics: SimulatedTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the decider or the reading ends, nothing changes any more: the page is still told to look again."""
    monkeypatch.setattr("tidegate.console.app.STREAM_BEAT_SECONDS", 0.2)
    of, looks = settings(console_viewers={"bob": BOB}), count()
    app = build(of, topics, Access(of), "a key", lambda: NOW + timedelta(hours=3 * next(looks)))
    browser = TestClient(app, base_url="http://127.0.0.1:8090", follow_redirects=False)
    browser.post("/sign-in", data={"token": BOB})
    assert browser.get("/events?job=rates").text.count("event: changed") == 2


def test_a_viewer_may_look_and_change_nothing(topics: SimulatedTopics) -> None:
    """With viewers configured everybody must sign in; a viewer sees pages, and no form."""
    of = settings(console_viewers={"bob": BOB})
    browser = client(topics, of)
    for path in ("/", "/jobs/rates", "/pools", "/jobs/rates/what-if", "/events"):
        assert browser.get(path).headers.get("location") == "/sign-in", path
    browser.post("/sign-in", data={"token": BOB})
    text = browser.get("/jobs/rates").text
    assert "bob, viewer" in text
    assert 'name="action"' not in text
    answer = browser.post("/jobs/rates/change", data={"action": "pause", "reason": "test", "form": "x"})
    assert (answer.status_code, topics.published) == (403, [])


def test_a_program_changes_a_job_with_its_token(topics: SimulatedTopics) -> None:
    """A bearer token needs no session and no form token; the answer is JSON."""
    headers = {"authorization": f"Bearer {ADA}"}
    sent = {"action": "pause", "reason": "by a script"}
    answer = client(topics).post("/jobs/rates/change", data=sent, headers=headers)
    assert answer.json() == {"job_id": "rates", "version": 2}
    assert topics.published[0].change is not None
    assert topics.published[0].change.by == "ada"
    refused = client(topics).post("/jobs/rates/change", data={"action": "pause"}, headers=headers)
    assert refused.status_code == 422
    assert "Give a reason" in refused.json()["error"]


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}]
)
def test_a_page_of_another_site_changes_nothing(
    ada: TestClient, topics: SimulatedTopics, headers: dict[str, str]
) -> None:
    """Even with the session and the form token, a request that another site made is refused."""
    sent = {"form": form_token(ada), "version": "1", "action": "pause", "reason": "test"}
    assert ada.post("/jobs/rates/change", data=sent, headers=headers).status_code == 403
    assert ada.post("/sign-in", data={"token": ADA}, headers=headers).status_code == 401
    assert topics.published == []


def test_a_login_that_a_proxy_adds_is_no_token(ada: TestClient, topics: SimulatedTopics) -> None:
    """A proxy that knows people by other means may add `Authorization: Basic …`: forms are checked as without it."""
    headers = {"authorization": "Basic YWRhOg=="}
    sent = {"form": form_token(ada), "version": "1", "action": "pause", "reason": "test"}
    elsewhere = headers | {"origin": "https://evil.example"}
    for wrong, by in ((sent | {"form": "guessed"}, headers), (sent, elsewhere)):
        assert ada.post("/jobs/rates/change", data=wrong, headers=by).status_code == 403
    assert topics.published == []
    assert ada.post("/jobs/rates/change", data=sent, headers=headers).status_code == 303
    assert client(topics, settings(console_viewers={"bob": BOB})).get("/", headers=headers).status_code == 303


def test_a_session_is_a_cookie_that_scripts_and_other_sites_do_not_get(topics: SimulatedTopics) -> None:
    """The cookie is HttpOnly and SameSite=lax, so no form of another site brings it; behind HTTPS it is Secure."""
    cookie = client(topics).post("/sign-in", data={"token": ADA}).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    secure = client(topics, settings(console_https=True)).post("/sign-in", data={"token": ADA})
    assert "secure" in secure.headers["set-cookie"].lower()


def test_a_session_ends_half_a_day_after_signing_in(topics: SimulatedTopics) -> None:
    """However often it is used: each answer renews the cookie, but not the session."""
    of, time = settings(console_viewers={"bob": BOB}), SetClock()
    app = build(of, topics, Access(of), "a key", time.now)
    browser = TestClient(app, base_url="http://127.0.0.1:8090", follow_redirects=False)
    browser.post("/sign-in", data={"token": ADA})
    for _ in range(11):
        time.at += timedelta(hours=1)
        assert browser.get("/").status_code == 200
    form = form_token(browser)
    time.at += timedelta(hours=1)
    sent = {"form": form, "version": "1", "action": "pause", "reason": "test"}
    assert browser.post("/jobs/rates/change", data=sent).status_code == 401
    assert browser.get("/").headers["location"] == "/sign-in"
    assert topics.published == []


def test_signing_out_ends_what_an_operator_may_do(ada: TestClient, topics: SimulatedTopics) -> None:
    """After signing out the old form token is worth nothing."""
    sent = {"form": form_token(ada), "version": "1", "action": "pause", "reason": "test"}
    ada.post("/sign-out")
    assert ada.post("/jobs/rates/change", data=sent).status_code == 401
    assert topics.published == []


def test_another_name_for_the_host_is_refused(topics: SimulatedTopics) -> None:
    """A page that resolves its own name to this machine cannot read the console."""
    assert client(topics).get("/", headers={"host": "evil.example"}).status_code == 400


def test_a_change_that_the_broker_did_not_take_is_not_shown_as_done(ada: TestClient, topics: SimulatedTopics) -> None:
    """The page says so, and the job's mode is the old one."""
    topics.refusal = NotDelivered("no broker")
    sent = {"form": form_token(ada), "version": "1", "action": "pause", "reason": "test"}
    answer = ada.post("/jobs/rates/change", data=sent)
    assert answer.status_code == 503
    assert "did not acknowledge" in answer.text
    assert "mode active" in ada.get("/jobs/rates").text


def test_a_change_that_must_not_be_published_says_why(ada: TestClient, topics: SimulatedTopics) -> None:
    """Such as one of a spec with fields that only a newer version knows."""
    topics.refusal = SpecRefused("rates: its spec has fields that would be lost")
    sent = {"form": form_token(ada), "version": "1", "action": "pause", "reason": "test"}
    answer = ada.post("/jobs/rates/change", data=sent)
    assert answer.status_code == 422
    assert "fields that would be lost" in answer.text


@pytest.mark.parametrize(("refusal", "status"), [(TimeoutError("too slow"), 504), (Unreachable("no broker"), 503)])
def test_topics_that_cannot_be_read_are_said_to_be(topics: SimulatedTopics, refusal: Exception, status: int) -> None:
    """Without the broker a single decision cannot be shown; the page says why, and the fleet is still there."""
    topics.refusal = refusal
    browser = client(topics)
    answer = browser.get("/jobs/rates/decisions/1")
    assert (answer.status_code, str(refusal) in answer.text) == (status, True)
    assert browser.get("/").status_code == 200


def test_a_broker_that_goes_away_while_it_is_asked_is_said_to_be_away(ada: TestClient, topics: SimulatedTopics) -> None:
    """Kafka's client tells of it in an error of its own: neither a page nor a change ends in a bare error 500."""
    sent = {"form": form_token(ada), "version": "1", "action": "pause", "reason": "test"}
    topics.refusal = KafkaException(KafkaError(KafkaError._TRANSPORT, "Failed to get metadata"))
    for answer in (ada.get("/jobs/rates/decisions/1"), ada.post("/jobs/rates/change", data=sent)):
        assert (answer.status_code, "Failed to get metadata" in answer.text) == (503, True)
        assert "KafkaError{" not in answer.text


def test_names_and_reasons_are_shown_as_text(ada: TestClient) -> None:
    """What an operator writes cannot become part of the page, nor end its data."""
    attack = "</script><script>alert(1)</script>"
    ada.post(
        "/jobs/rates/change",
        data={"form": form_token(ada), "version": "1", "action": "pause", "reason": attack},
    )
    text = ada.get("/jobs/rates").text
    assert "alert(1)" in text
    assert "<script>alert" not in text


def test_unknown_jobs_and_pages_are_said_to_be(topics: SimulatedTopics) -> None:
    """A wrong address gives a page that says what is wrong."""
    browser = client(topics)
    assert "does not manage a job" in browser.get("/jobs/nope").text
    assert browser.get("/nope").status_code == 404


def test_health_tells_whether_the_topics_are_read(topics: SimulatedTopics) -> None:
    """A console whose reading has ended is unhealthy, and its pages say that the figures are old."""
    browser = client(topics)
    assert browser.get("/healthz").json() == {"state": "live"}
    topics.state = "the broker is gone"
    assert browser.get("/healthz").status_code == 503
    assert "These figures are old" in browser.get("/").text


def test_on_loopback_the_console_makes_a_token_at_its_start() -> None:
    """Without configured operators there is a new token each time; it is printed, and it works."""
    of = ConsoleSettings()
    first, second = Access(of), Access(of)
    assert first.start_token
    assert first.start_token != second.start_token
    person = first.known(first.start_token)
    assert person is not None
    assert (person.name, person.role.value) == ("operator", "operator")
    assert second.known(first.start_token) is None
    assert any(first.start_token in line for line in introduction(of, first, 8090))


def test_beyond_loopback_nothing_changes_without_a_configured_token(topics: SimulatedTopics) -> None:
    """Bound to the network and without operators, changes are off; the start and the pages say so."""
    of = ConsoleSettings(console_host="0.0.0.0")  # noqa: S104
    said = " ".join(introduction(of, Access(of), 8090))
    assert "Changes are off" in said
    assert "can read everything" in said
    browser = client(topics, of)
    assert "Changes are off" in browser.get("/jobs/rates").text
    assert browser.post("/jobs/rates/change", data={"action": "pause", "reason": "test"}).status_code == 403
    assert topics.published == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"console_operators": {"ada": "short"}},
        {"console_viewers": {"ada": ADA}},
        {"console_operators": {"": ADA}},
        {"console_operators": {ADA: "ada"}},
        {"console_viewers": {ADA: "ada"}},
    ],
)
def test_weak_or_contradicting_tokens_are_refused(wrong: dict[str, dict[str, str]]) -> None:
    """A short token, a name with two roles and an empty name are errors at the start, and show no token."""
    with pytest.raises(ValidationError) as refused:
        settings(**wrong)
    problem = first_problem(refused.value)
    assert next(iter(wrong)) in problem or "both operator and viewer: ada" in problem
    assert ADA not in problem


def test_tokens_come_from_the_environment_and_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are JSON in a variable; printed settings have stars for them."""
    monkeypatch.setenv("TIDEGATE_CONSOLE_OPERATORS", f'{{"ada": "{ADA}"}}')
    of = ConsoleSettings()
    assert Access(of).known(ADA) is not None
    assert ADA not in str(of.redacted())


def test_tokens_come_from_a_mounted_file(tmp_path: Path) -> None:
    """A file of the setting's name holds the same JSON."""
    (tmp_path / "tidegate_console_operators").write_text(f'{{"ada": "{ADA}"}}\n', "utf-8")
    of = ConsoleSettings(_secrets_dir=tmp_path)  # type: ignore[call-arg]
    assert Access(of).known(ADA) is not None


def test_the_vendored_libraries_are_unchanged() -> None:
    """Each file of a library has the checksum that is noted next to it."""
    lines = (VENDOR / "SHA256SUMS").read_text("utf-8").splitlines()
    noted = {name: digest for digest, name in (line.split() for line in lines)}
    found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in VENDOR.glob("*.min.*")}
    assert noted == found


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/?page=²", 200),
        ("/?page=" + 5000 * "9", 200),
        ("/jobs/rates/decisions/" + 5000 * "9", 404),
        ("/jobs/rates/decisions/now", 404),
        ("/jobs/rates/what-if?policy=tide&hours=" + 400 * "9", 422),
        ("/jobs/rates/what-if?policy=tide&lag_objective_seconds=" + 400 * "9", 422),
    ],
)
def test_no_number_in_an_address_is_too_much(topics: SimulatedTopics, path: str, status: int) -> None:
    """Digits that are none, and numbers that are too long for any, get a page and not an error of the server."""
    assert client(topics).get(path).status_code == status


@pytest.mark.parametrize("slots", ["²", "٣", 5000 * "9"])
def test_a_size_in_other_digits_is_said_to_be_none(ada: TestClient, slots: str) -> None:
    """What is wrong with a size is said in our words, not in Python's."""
    form = {"form": form_token(ada), "action": "scale", "reason": "r", "slots": slots}
    answer = ada.post("/jobs/rates/change", data=form)
    assert answer.status_code == 422
    assert "is not a number of slots" in answer.text


def test_an_origin_that_is_no_address_is_another_site(topics: SimulatedTopics) -> None:
    """A browser never sends one; it is refused like any other site."""
    answer = client(topics).post("/sign-in", data={"token": ADA}, headers={"origin": "http://["})
    assert answer.status_code == 401
    assert "comes from another site" in answer.text
