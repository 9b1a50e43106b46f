"""Measurements that are no tests: ``python -m benchmarks --help`` lists them, README.md has the figures."""
