"""The console in a real Chromium: live, by keyboard, on a phone, without colour, and open to everybody."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.support.browser import PHONE, WIDE, chromium, complaints, resize, served, violations
from tests.support.fleets import SimulatedTopics, decision, simulated_topics
from tests.support.http_server import QuietHandler, serving
from tidegate.console.settings import ConsoleSettings
from tidegate.events.job import Mode
from tidegate.runtime.poll import wait_until

ADA = "ada-operates-this-fleet"


@pytest.fixture(scope="module")
def topics() -> SimulatedTopics:
    """Five simulated jobs with their last hour, which ends now."""
    return simulated_topics(datetime.now(UTC).replace(microsecond=0))


@pytest.fixture(scope="module")
def console(topics: SimulatedTopics) -> Iterator[str]:
    """The address of a console over them."""
    with served(topics, ConsoleSettings(console_operators={"ada": ADA})) as address:  # type: ignore[dict-item]
        yield address


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """One Chromium for all tests here."""
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as made:
        yield made


@pytest.fixture(autouse=True)
def fresh(browser: webdriver.Chrome, console: str) -> None:
    """Each test starts signed out, on a wide screen."""
    browser.get(f"{console}/sign-in")
    browser.delete_all_cookies()
    complaints(browser)
    resize(browser, WIDE)


def sign_in(browser: webdriver.Chrome, console: str) -> None:
    """Sign in as ada."""
    browser.get(f"{console}/sign-in")
    browser.find_element(By.ID, "token").send_keys(ADA, Keys.ENTER)
    browser.find_element(By.XPATH, "//*[contains(text(), 'ada, operator')]")


def tab_to(browser: webdriver.Chrome, attribute: str, value: str) -> None:
    """Press Tab until the focus is where an attribute has a value; a few times must be enough."""
    for _ in range(15):
        webdriver.ActionChains(browser).send_keys(Keys.TAB).perform()
        if browser.switch_to.active_element.get_attribute(attribute) == value:
            return
    pytest.fail(f"15 times Tab do not lead to {attribute}={value}")


def pages(topics: SimulatedTopics) -> list[str]:
    """Return an address of each page."""
    orders = topics.fleet.get("orders")
    assert orders is not None
    ordered = next(one for one in topics.recordings["orders"].decisions if one.command is not None)
    job = "/jobs/orders"
    decision = f"{job}/decisions/{ordered.sequence}?change=1"
    return ["/", "/pools", job, decision, f"{job}/what-if?policy=hpa", "/sign-in"]


def test_axe_finds_nothing_on_any_page(browser: webdriver.Chrome, console: str, topics: SimulatedTopics) -> None:
    """On a wide screen and on a phone, light and dark, no page keeps anybody out or is wider than the screen."""
    sign_in(browser, console)
    for size, scheme in ((WIDE, "light"), (PHONE, "dark")):
        resize(browser, size, scheme)
        for path in pages(topics):
            browser.get(console + path)
            assert violations(browser) == [], path
            assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0], path
    assert complaints(browser) == []


def test_an_event_is_on_the_screen_within_seconds(
    browser: webdriver.Chrome, console: str, topics: SimulatedTopics
) -> None:
    """A new decision changes the page that is open, which keeps the focus where it was."""
    browser.get(console)
    browser.execute_script("document.getElementById('to-rates').focus(); window.still = true")
    job = topics.fleet.get("rates")
    assert job is not None
    new = decision(job.spec, datetime.now(UTC) + timedelta(seconds=1), lag_records=123_456)
    with topics.reading() as fleet:
        fleet.take(new)
    assert wait_until(lambda: "123,456" in browser.find_element(By.ID, "job-rates").text, 10)
    assert browser.execute_script("return window.still") is True, "the page was not loaded again"
    assert browser.execute_script("return document.activeElement.id") == "to-rates"
    assert complaints(browser) == []


def test_a_chart_follows_and_has_a_line_for_each_series(
    browser: webdriver.Chrome, console: str, topics: SimulatedTopics
) -> None:
    """The charts of a job are drawn, and their words change with the next decision."""
    browser.get(f"{console}/jobs/sessions")
    drawn = browser.find_elements(By.CSS_SELECTOR, ".plot canvas")
    assert len(drawn) == 4
    assert all(canvas.size["width"] > 300 for canvas in drawn)
    job = topics.fleet.get("sessions")
    assert job is not None
    new = decision(job.spec, datetime.now(UTC) + timedelta(seconds=1), lag_records=7_654_321)
    with topics.reading() as fleet:
        fleet.take(new)
    words = "Lag now 7,654,321 records"
    assert wait_until(lambda: words in browser.find_element(By.ID, "job-lag-text").text, 10)
    assert complaints(browser) == []


def test_an_operator_pauses_a_job_by_keyboard(browser: webdriver.Chrome, console: str, topics: SimulatedTopics) -> None:
    """Tab and Enter are enough to reach the form, write a reason and pause a job; the page then says who did it."""
    sign_in(browser, console)
    browser.get(f"{console}/jobs/payments")
    tab_to(browser, "href", f"{console}/jobs/payments#change")
    webdriver.ActionChains(browser).send_keys(Keys.ENTER).perform()
    tab_to(browser, "id", "reason")
    webdriver.ActionChains(browser).send_keys("repairs in the ledger", Keys.ENTER).perform()
    browser.find_element(By.XPATH, "//*[contains(text(), 'payments is paused')]")
    assert [(spec.job_id, spec.scaling.mode) for spec in topics.published] == [("payments", Mode.PAUSED)]
    assert "repairs in the ledger" in browser.find_element(By.ID, "log").text
    assert complaints(browser) == []


def test_a_link_on_another_site_finds_the_operator_signed_in(browser: webdriver.Chrome, console: str) -> None:
    """As does the redirect of an identity provider, or a link in an alert."""
    sign_in(browser, console)
    browser.get(f"data:text/html,<a href='{console}/jobs/payments'>TidegateLagging</a>")
    browser.find_element(By.LINK_TEXT, "TidegateLagging").click()
    assert wait_until(lambda: browser.current_url.startswith(console), 30)
    assert browser.find_elements(By.XPATH, "//*[contains(text(), 'ada, operator')]")


def test_a_lost_connection_is_told(browser: webdriver.Chrome, topics: SimulatedTopics) -> None:
    """When the console goes away, the page says so in words instead of showing old figures as live."""
    with served(topics, ConsoleSettings()) as address:
        browser.get(address)
        assert wait_until(lambda: "live" in browser.find_element(By.ID, "connection").text, 30)
    lost = ("connection lost", "cannot update")
    assert wait_until(lambda: any(word in browser.find_element(By.ID, "connection").text for word in lost), 60)


class _BadGateway(QuietHandler):
    """What a proxy answers while the console behind it is away."""

    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:  # noqa: N802 - as the base class calls it
        """Answer 502."""
        self.seen.append(self.path)
        self.send_error(502)


def test_a_page_goes_on_after_its_proxy_has_answered_for_the_console(
    browser: webdriver.Chrome, topics: SimulatedTopics
) -> None:
    """An answer that is no stream ends a browser's own attempts; the page tries again as it says, and is live again."""
    with served(topics, ConsoleSettings()) as address:
        browser.get(address)
        assert wait_until(lambda: "live" in browser.find_element(By.ID, "connection").text, 30)
        port = urlsplit(address).port or 0
    with serving(_BadGateway, port=port):
        assert wait_until(lambda: any(path.startswith("/events") for path in _BadGateway.seen), 60)
    with served(topics, ConsoleSettings(), port):
        assert wait_until(lambda: "live, " in browser.find_element(By.ID, "connection").text, 60)
    complaints(browser)
