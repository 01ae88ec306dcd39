"""A real YARN on this machine: a ResourceManager and a NodeManager of Hadoop 3.5, and a folder that all of it shares.

`make test-yarn` runs these tests; nothing else does, because the daemons' jar has 56 MB. All else that they need is
among pyspark's own jars.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.hadoop import Daemons, end_applications, start_yarn, yarn_site
from tests.support.yarn_job import YarnInfo
from tidegate.remote.yarn import ResourceManager
from tidegate.stack.ports import free_ports

ASKED = "TIDEGATE_TEST_YARN"

collect_ignore_glob = [] if ASKED in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnInfo]:
    """Yield the cluster; its daemons, and with them all containers, end with the session."""
    folder = tmp_path_factory.mktemp("yarn")
    ports = free_ports(5)
    url = f"http://127.0.0.1:{ports[4]}"
    daemons = Daemons(folder, {"core-site": {"fs.defaultFS": "file:///"}, **yarn_site(folder, ports)})
    manager = ResourceManager(2.0)
    try:
        start_yarn(daemons, manager, url)
        yield YarnInfo(url, folder)
        end_applications(manager, url)
    finally:
        manager.close()
        daemons.end()
