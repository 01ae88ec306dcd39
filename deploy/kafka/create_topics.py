"""Creates the Tidegate topics that are missing, and checks those that are there.

Run in a service's image with its settings; exit code 0 when the topics fit, 2 with one line when they do not.
"""

from __future__ import annotations

import os
import sys

from confluent_kafka import KafkaException

from tidegate.runtime.kafka import TopicsDoNotFit, ensure_topics
from tidegate.runtime.service import read_settings
from tidegate.runtime.settings import ServiceSettings


def main() -> int:
    """Create and check; `PARTITIONS` and `REPLICATION` say how."""
    settings = read_settings("topics", ServiceSettings)
    partitions, replication = int(os.environ.get("PARTITIONS", "8")), int(os.environ.get("REPLICATION", "1"))
    try:
        created = ensure_topics(settings, partitions=partitions, replication=replication)
    except (TopicsDoNotFit, KafkaException) as error:
        why = error.args[0].str() if isinstance(error, KafkaException) else error
        sys.stderr.write(f"topics at {settings.bootstrap_servers}: {why}\n")
        return 2
    sys.stdout.write(f"created {', '.join(created)}\n" if created else "all topics are there\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
