"""Queues as this broker serves them: share sessions, the share partitions that it leads, who waits."""
