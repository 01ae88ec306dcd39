"""What services reach over the network: a job's files on any file system, YARN's ResourceManager, and Redis."""
