"""Measurements that are no tests; see README.md."""
