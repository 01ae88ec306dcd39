"""A real HDFS on this machine: a NameNode and a DataNode of Hadoop 3.5, with small blocks.

`make test-hdfs` runs these tests; nothing else does, because the daemons' jar has 56 MB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.hadoop import Daemons
from tidegate.remote.files import Files
from tidegate.runtime.poll import wait_until
from tidegate.stack.ports import free_ports

ASKED = "TIDEGATE_TEST_HDFS"
BLOCK_BYTES = 65_536

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
    data_node = {f"dfs.datanode.{name}address": "127.0.0.1:0" for name in ("", "http.", "ipc.")}
    site = {
        "dfs.namenode.rpc-address": f"127.0.0.1:{rpc}",
        "dfs.namenode.http-address": f"127.0.0.1:{http}",
        "dfs.namenode.name.dir": (folder / "name").as_uri(),
        "dfs.datanode.data.dir": (folder / "data").as_uri(),
        "dfs.namenode.fs-limits.min-block-size": "1024",
        "dfs.blocksize": str(BLOCK_BYTES),
        "dfs.replication": "1",
        "dfs.datanode.hostname": "127.0.0.1",
        **data_node,
    }
    daemons = Daemons(folder, {"core-site": {"fs.defaultFS": uri}, "hdfs-site": site})
    name_node = "hdfs.server.namenode.NameNode"

    def writable() -> bool:
        try:
            Files({"hdfs": {"url": url}}).remote(f"{uri}/ready").replace(b"")
        except OSError:
            return False
        return True

    try:
        assert daemons.start(name_node, "-format", "-force", "-nonInteractive").wait(60) == 0, daemons.logs()
        daemons.start(name_node)
        daemons.start("hdfs.server.datanode.DataNode")
        assert wait_until(writable, 90), daemons.logs()
        yield Hdfs(uri, url, daemons)
    finally:
        daemons.end()
