"""A real realm of Kerberos, and an HDFS and a YARN of Hadoop 3.5 that let nobody in without a ticket.

`make test-kerberos` runs these tests; nothing else does, because they need a KDC and the daemons' jar of 56 MB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hdfs.conftest import Hdfs
from tests.support.hadoop import Daemons, end_applications, hdfs_site, start_hdfs, start_yarn, yarn_site
from tests.support.realm import NAME, Realm
from tests.support.yarn_job import YarnInfo
from tidegate.remote.webhdfs import open_hdfs
from tidegate.remote.yarn import ResourceManager
from tidegate.runtime.poll import wait_until
from tidegate.stack.ports import free_ports

ASKED = "TIDEGATE_TEST_KERBEROS"
HOST = "localhost"
COOKIE_SECONDS = 20
"""How long a server of Hadoop knows who has shown a ticket: 10 hours unless it is told otherwise."""
TOKEN_SECONDS = 120
"""How long a token for HDFS is valid that a job got with its ticket: by default a week."""

collect_ignore_glob = [] if ASKED in os.environ else ["test_*.py"]


@dataclass(frozen=True)
class Cluster(YarnInfo):
    """A running realm, HDFS and YARN."""

    realm: Realm
    hdfs: Hdfs


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield all of it; its daemons, and with them all containers, end with the session."""
    folder = tmp_path_factory.mktemp("kerberos")
    realm = Realm(folder)
    rpc, http, *ports = free_ports(7)
    uri, url = f"hdfs://{HOST}:{rpc}", f"http://{HOST}:{ports[4]}"
    site = yarn_site(folder, ports, HOST) | {"hdfs-site": hdfs_site(folder, rpc, http, HOST)}
    secured = _secured(folder, realm)
    settings = {name: site.get(name, {}) | secured.get(name, {}) for name in site | secured}
    settings["core-site"]["fs.defaultFS"] = uri
    daemons = Daemons(folder, settings)
    hdfs = Hdfs(uri, f"http://{HOST}:{http}", daemons)
    manager = ResourceManager(5.0)
    try:
        with pytest.MonkeyPatch.context() as patch:  # for all JVMs that are started from here
            patch.setenv("JAVA_TOOL_OPTIONS", realm.java_option)
            patch.setenv("HADOOP_CONF_DIR", str(folder))
            with as_user(realm, "nn-tickets", realm.keytab(f"nn/{HOST}")):
                start_hdfs(daemons)
                assert wait_until(lambda: _opened(hdfs), 90), daemons.logs()
            with as_user(realm, "tickets", realm.keytab("etl")):
                start_yarn(daemons, manager, url)
                yield Cluster(url, folder, realm, hdfs)
                end_applications(manager, url)
    finally:
        manager.close()
        daemons.end()
        realm.stop()


@pytest.fixture
def hdfs(cluster: Cluster) -> Hdfs:
    """The file system, by the name that the tests of any HDFS know it by."""
    return cluster.hdfs


@contextmanager
def as_user(realm: Realm, cache: str, keytab: Path | None = None) -> Iterator[None]:
    """Have this process take its tickets from a cache of that name, and perhaps get them with a keytab."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KRB5_CLIENT_KTNAME", raising=False)
        for name, value in realm.environment(realm.folder / cache, keytab).items():
            patch.setenv(name, value)
        yield


def _opened(hdfs: Hdfs) -> bool:
    """Let everyone write at the top of HDFS; return whether that was done."""
    try:
        open_hdfs("", url=hdfs.url).chmod("/", "777")
    except (OSError, RuntimeError):
        return False
    return True


def _secured(folder: Path, realm: Realm) -> dict[str, dict[str, str]]:
    """Return the settings, by file, that make HDFS and YARN ask for tickets."""
    (folder / "secret").write_text("signs cookies", "utf-8")
    keytab = str(realm.keytab(*(f"{service}/{HOST}" for service in ("HTTP", "dn", "rm", "nm")), f"nn/{HOST}"))
    web = f"HTTP/{HOST}@{NAME}"
    http = "hadoop.http.authentication"
    core = {
        "hadoop.security.authentication": "kerberos",
        "hadoop.http.filter.initializers": "org.apache.hadoop.security.AuthenticationFilterInitializer",
        f"{http}.type": "kerberos",
        f"{http}.kerberos.principal": web,
        f"{http}.kerberos.keytab": keytab,
        f"{http}.signature.secret.file": str(folder / "secret"),
        f"{http}.token.validity": str(COOKIE_SECONDS),
    }
    hdfs = {
        "dfs.namenode.kerberos.principal": f"nn/{HOST}@{NAME}",
        "dfs.namenode.keytab.file": keytab,
        "dfs.datanode.kerberos.principal": f"dn/{HOST}@{NAME}",
        "dfs.datanode.keytab.file": keytab,
        "dfs.web.authentication.kerberos.principal": web,
        "dfs.web.authentication.kerberos.keytab": keytab,
        "dfs.block.access.token.enable": "true",
        "dfs.data.transfer.protection": "authentication",
        "ignore.secure.ports.for.testing": "true",
        "dfs.namenode.delegation.token.max-lifetime": str(TOKEN_SECONDS * 1000),
        "dfs.namenode.delegation.token.renew-interval": str(TOKEN_SECONDS * 1000),
    }
    yarn: dict[str, str] = {}
    for daemon, principal in (("resourcemanager", "rm"), ("nodemanager", "nm")):
        yarn |= {
            f"yarn.{daemon}.principal": f"{principal}/{HOST}@{NAME}",
            f"yarn.{daemon}.keytab": keytab,
            f"yarn.{daemon}.webapp.spnego-principal": web,
            f"yarn.{daemon}.webapp.spnego-keytab-file": keytab,
        }
    return {"core-site": core, "hdfs-site": hdfs, "yarn-site": yarn}
