"""What YARN and HDFS are asked over HTTP, with tickets that expire, and what a user is told without one."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from tests.kerberos.conftest import COOKIE_SECONDS, HOST, Cluster, as_user
from tests.support.events import job, with_application
from tests.support.fake_yarn import on_yarn
from tests.support.realm import NAME, SKEW_SECONDS
from tidegate.cli.doctor.clusters import yarn_of_jobs
from tidegate.cli.doctor.files import files_of_jobs
from tidegate.remote.files import Files
from tidegate.remote.yarn import ResourceManager

TICKET_SECONDS = 30


@pytest.fixture
def manager() -> Iterator[ResourceManager]:
    """Nobody has shown it a ticket yet."""
    with closing(ResourceManager()) as manager:
        yield manager


def test_nobody_gets_in_without_a_ticket(cluster: Cluster, manager: ResourceManager) -> None:
    """The cluster is what these tests are about: all its web servers ask, and answer who has a ticket."""
    (node,) = manager.get(cluster.url, "nodes")["nodes"]["node"]
    containers = f"http://{node['nodeHTTPAddress']}/ws/v1/node/containers"
    for url in (f"{cluster.url}/ws/v1/cluster/apps", containers, f"{cluster.hdfs.url}/webhdfs/v1/?op=LISTSTATUS"):
        answer = httpx.get(url)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Negotiate")
    assert manager.text(containers).startswith('{"containers":')


@pytest.mark.timeout(300)
def test_a_keytab_outlives_its_tickets(cluster: Cluster, manager: ResourceManager) -> None:
    """With a keytab, YARN and HDFS answer for four lifetimes of a ticket. With only a ticket, they do for one."""
    keytab = cluster.realm.keytab("brief", seconds=TICKET_SECONDS)
    uri = f"{cluster.hdfs.uri}/{uuid.uuid4().hex[:8]}"
    place = cluster.hdfs.files().remote(uri)
    with as_user(cluster.realm, "brief", keytab):
        started = time.monotonic()
        while time.monotonic() < started + 4 * TICKET_SECONDS:
            assert manager.get(cluster.url, "info")
            (place / "a").replace(b"1")
            assert (place / "a").read_bytes() == b"1"
            time.sleep(3)
    got = cluster.realm.log().count(f"brief@{NAME} for krbtgt/")
    print("tickets that were got:", got)
    assert got >= 4
    with as_user(cluster.realm, "brief"):
        time.sleep(TICKET_SECONDS + SKEW_SECONDS + COOKIE_SECONDS)
        for ask in (lambda: manager.get(cluster.url, "info"), (place / "a").read_bytes):
            with pytest.raises((OSError, RuntimeError), match=r"Ticket expired; set KRB5_CLIENT_KTNAME"):
                ask()


@pytest.mark.parametrize(
    ("user", "host", "told"),
    [
        ("etl", HOST, None),
        ("nobody", HOST, "No Kerberos credentials available.*; set KRB5_CLIENT_KTNAME"),
        ("etl", "127.0.0.1", "Server HTTP/127.0.0.1@.* not found.*; the address must name the host"),
        ("gone", HOST, "Client 'gone@.*' not found.*; use a keytab of a principal that the realm has"),
        ("changed", HOST, "Decrypt integrity check failed; .* export its keytab again"),
        ("away", HOST, "Cannot contact any KDC.*; check that the KDC runs"),
    ],
)
def test_doctor_says_what_to_do(cluster: Cluster, user: str, host: str, told: str | None) -> None:
    """Of each job on YARN, and of each of its files. With a ticket, all is well."""
    realm = cluster.realm
    keytab = None if user == "nobody" else realm.keytab(user)
    if user == "gone":
        realm.admin("delprinc -force gone")
    if user == "changed":
        realm.admin("cpw -randkey changed")
    spec = on_yarn(job("rates"), event_log_dir=f"{cluster.hdfs.uri}/", checkpoint_location=f"{cluster.hdfs.uri}/ck")
    spec = with_application(spec, rest_url=cluster.url.replace(HOST, host))
    files = Files({"hdfs": {"url": cluster.hdfs.url.replace(HOST, host)}})
    if user == "away":
        realm.stop()
    try:
        with as_user(realm, f"tickets-{user}", keytab):
            found = [*yarn_of_jobs({"rates": spec}), *files_of_jobs({"rates": spec}, files, {})]
    finally:
        if user == "away":
            realm.start()
    print(*found, sep="\n")
    if told is None:
        assert [finding.verdict for finding in found] == ["ok", "ok"]
        return
    assert [finding.verdict for finding in found] == ["warn", "fail", "fail"]
    for finding in found[:2]:
        assert re.search(f"{host} asks for Kerberos: {told}", finding.found)
    assert "not looked for; see event_log_dir" in found[2].found
