"""What a ResourceManager and a NameNode that ask for Kerberos are sent, and what a user is told without a ticket."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.support import fake_gssapi
from tests.support.fake_gssapi import ExpiredCredentialsError, GSSError, shown_to
from tests.support.fake_webhdfs import FakeWebHdfs, fake_webhdfs
from tests.support.fake_yarn import URL, FakeResourceManager
from tidegate.remote.files import Files
from tidegate.remote.yarn import ResourceManager, RmRefused, RmUnreachable


class Kerberized:
    """A ResourceManager that asks for a ticket, and knows by a cookie who has shown one. Another is on standby."""

    def __init__(self) -> None:
        self.manager = FakeResourceManager()
        self.manager.add("application_1", "rates", user="etl")
        self.client = ResourceManager(transport=httpx.MockTransport(self._answer))
        self.asked: list[httpx.Request] = []

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        host = request.url.host
        cookie = {"Set-Cookie": "hadoop.auth=etl"} if request.headers.get("authorization") == shown_to(host) else {}
        if not cookie and "hadoop.auth=etl" not in request.headers.get("cookie", ""):
            return httpx.Response(401, headers={"WWW-Authenticate": "Negotiate"})
        if host == "standby":
            return httpx.Response(307, headers={"Location": f"http://rm:8088{request.url.raw_path.decode()}", **cookie})
        assert "user.name" not in request.url.params
        if request.method == "PUT":
            return httpx.Response(202, json={"state": "KILLED"}, headers=cookie)
        answer = self.manager.answer(request)
        answer.headers.update(cookie)
        return answer


def test_a_resource_manager_that_asks_gets_a_ticket(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown once; then a cookie is enough. No user is named: the ticket says who asks, also for a kill."""
    fake_gssapi.install(monkeypatch)
    kerberized = Kerberized()
    (app,) = kerberized.client.applications(URL)
    assert len(kerberized.asked) == 2
    kerberized.client.kill(URL, app)
    assert len(kerberized.asked) == 3
    assert "authorization" not in kerberized.asked[-1].headers


def test_a_kill_can_be_the_first_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says is sent again with the ticket, and the user that it named is not."""
    fake_gssapi.install(monkeypatch)
    kerberized = Kerberized()
    kerberized.client.kill(URL, kerberized.manager.apps["application_1"])
    assert kerberized.asked[-1].content == b'{"state":"KILLED"}'


def test_a_standby_and_the_active_one_each_get_a_ticket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ticket is for one host; the one that is redirected to asks for its own."""
    fake_gssapi.install(monkeypatch)
    kerberized = Kerberized()
    (app,) = kerberized.client.applications("http://standby:8088")
    assert app["name"] == "rates"
    assert [request.url.host for request in kerberized.asked] == ["standby", "standby", "rm", "rm"]


def test_a_ticket_that_is_refused_is_not_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is the server's own, without its page."""
    fake_gssapi.install(monkeypatch)
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        page = "<html>\n<head>…</head></html>"
        return httpx.Response(401, headers={"WWW-Authenticate": "Negotiate"}, text=page)

    with pytest.raises(RmRefused, match=r"401: Unauthorized$"):
        ResourceManager(transport=httpx.MockTransport(answer)).get(URL, "info")
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (GSSError("No Kerberos credentials available (default cache: FILE:/tmp/x)"), "(default cache: FILE:/tmp/x); "),
        (GSSError("No Kerberos credentials available"), "available; set KRB5_CLIENT_KTNAME to a keytab"),
        (ExpiredCredentialsError("Success"), "Ticket expired; set KRB5_CLIENT_KTNAME to a keytab"),
        (GSSError("Client 'etl@R' not found in Kerberos database"), "database; use a keytab of a principal"),
        (GSSError("Decrypt integrity check failed"), "failed; the principal has a new key: export its keytab again"),
        (GSSError("Server HTTP/a@R not found in Kerberos database"), "database; the address must name the host"),
        (GSSError("Cannot contact any KDC for realm 'R'"), "'R'; check that the KDC runs"),
        (GSSError('Cannot find KDC for realm "R"'), '"R"; name the realm\'s KDC in krb5.conf'),
        (GSSError("Clock skew too great"), "great; let both machines get their time"),
        (GSSError("Something new"), "Something new"),
        (None, "install it: pip install 'tidegate[kerberos]'"),
    ],
)
def test_without_a_ticket_the_text_says_what_to_do(
    why: GSSError | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for YARN and for HDFS, in one line that names the server, and no advice about its address."""
    if why is None:
        monkeypatch.setitem(sys.modules, "gssapi", None)
    else:
        fake_gssapi.install(monkeypatch, why)
    with pytest.raises(RmUnreachable) as no_answer:
        Kerberized().client.get(URL, "info")
    with fake_webhdfs() as hdfs:
        hdfs.kerberos = True
        place = Files({"hdfs": {"url": hdfs.url}}).remote("hdfs://nn/a")
        with pytest.raises(OSError, match=r"hdfs://nn/a: 127\.0\.0\.1 asks for Kerberos: ") as no_file:
            place.stat()
    assert "rm asks for Kerberos: " in str(no_answer.value)
    for text in map(str, (no_answer.value, no_file.value)):
        assert told in text
        assert "\n" not in text
        assert "TIDEGATE_FILES" not in text


class TestWebHdfs:
    """A NameNode that asks for tickets."""

    def test_it_gets_a_ticket_and_no_user(self, hdfs: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
        """Once: then a cookie is enough. Files are read, written and created; the option `kerberos` is not needed."""
        fake_gssapi.install(monkeypatch)
        hdfs.put("/a", b"x")
        for options in ({}, {"user": "ann"}, {"kerberos": True}):
            hdfs.requests.clear()
            place = Files({"hdfs": {"url": hdfs.url, **options}}).remote("hdfs://nn/")
            assert (place / "a").read_bytes() == b"x"
            (place / "a").replace(b"x")
            assert (place / "b").create(b"1")
            (place / "b").unlink()
            assert hdfs.requests[:3] == ["GET OPEN /a"] * 3, "refused, allowed, and at the DataNode"
            assert len(hdfs.requests) == 3 + 3 + 3 + 1

    @pytest.fixture
    def hdfs(self) -> Iterator[FakeWebHdfs]:
        """A server."""
        with fake_webhdfs() as server:
            server.kerberos = True
            yield server
