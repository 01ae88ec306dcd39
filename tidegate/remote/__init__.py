"""What collector and actuator reach of a job's cluster: files on any file system, and YARN's ResourceManager."""
