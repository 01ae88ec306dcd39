"""What any HDFS does, on one that asks for tickets: the services show theirs to WebHDFS, the driver to Hadoop."""

from tests.hdfs.test_files import *  # noqa: F403 - the same tests, with the `hdfs` of this folder
