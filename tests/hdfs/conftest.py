"""A real HDFS on this machine: a NameNode and a DataNode of Hadoop 3.5, with small blocks.

`make test-hdfs` runs these tests; nothing else does, because the daemons' jar has 56 MB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.hadoop import Daemons, hdfs_site, start_hdfs
from tidegate.remote.files import Files
from tidegate.runtime.poll import wait_until
from tidegate.stack.ports import free_ports

ASKED = "TIDEGATE_TEST_HDFS"

collect_ignore_glob = [] if ASKED in os.environ else ["test_*.py"]


@dataclass(frozen=True)
class Hdfs:
    """A running HDFS."""

    uri: str
    """As Spark has it."""
    url: str
    """Of WebHDFS."""
    daemons: Daemons

    def files(self, timeout_seconds: float = 5.0) -> Files:
        """Return how the services reach it."""
        return Files({"hdfs": {"url": self.url, "timeout_seconds": timeout_seconds}})


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """Yield the file system; its daemons end with the session."""
    folder = tmp_path_factory.mktemp("hdfs")
    rpc, http = free_ports(2)
    uri, url = f"hdfs://127.0.0.1:{rpc}", f"http://127.0.0.1:{http}"
    daemons = Daemons(folder, {"core-site": {"fs.defaultFS": uri}, "hdfs-site": hdfs_site(folder, rpc, http)})

    def writable() -> bool:
        try:
            Files({"hdfs": {"url": url}}).remote(f"{uri}/ready").replace(b"")
        except OSError:
            return False
        return True

    try:
        start_hdfs(daemons)
        assert wait_until(writable, 90), daemons.logs()
        yield Hdfs(uri, url, daemons)
    finally:
        daemons.end()
