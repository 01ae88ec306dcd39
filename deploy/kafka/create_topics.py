"""Creates the Tidegate topics that do not exist, and checks those that do.

It runs in a service's image with the service's settings. Exit code 0: the topics fit; 2: they do not, and one line says
why. With `--check` it creates nothing.
"""

from __future__ import annotations

import logging
import os
import sys

from confluent_kafka import KafkaException

from tidegate.runtime.extras import WRONG_SET_UP
from tidegate.runtime.logs import configure
from tidegate.runtime.producer import said
from tidegate.runtime.reach import Unreachable
from tidegate.runtime.service import read_settings
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import TopicsDoNotFit, check_topics, ensure_topics

log = logging.getLogger("topics")


def main() -> int:
    """Create and check; `PARTITIONS` and `REPLICATION` say how many of each."""
    settings = read_settings("topics", ServiceSettings)
    configure("topics", settings)
    try:
        partitions, replication = int(os.environ.get("PARTITIONS", "8")), int(os.environ.get("REPLICATION", "1"))
    except ValueError as error:
        log.critical("PARTITIONS and REPLICATION must be whole numbers: %s", error)
        return WRONG_SET_UP
    try:
        if "--check" in sys.argv[1:]:
            check_topics(settings)
            return 0
        created = ensure_topics(settings, partitions=partitions, replication=replication)
    except (TopicsDoNotFit, Unreachable, KafkaException) as error:
        log.critical("topics at %s: %s", settings.bootstrap_servers, said(error))
        return WRONG_SET_UP
    log.info("created %s", ", ".join(created) or "nothing: all topics exist")
    return 0


if __name__ == "__main__":
    sys.exit(main())
