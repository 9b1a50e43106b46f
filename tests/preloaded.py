"""Packages of others that the suite needs, imported before coverage traces, which slows all Python code down.

``python -m pytest -p tests.preloaded --cov``. Nothing of ours is among them: its lines would not be seen.
"""

from contextlib import suppress
from importlib import import_module

PACKAGES = ["torch", "scipy.special", "matplotlib.axes", "matplotlib.figure", "rich.console", "hypothesis.strategies"]
SERVER = ["sqlalchemy.orm", "alembic.command", "fastapi", "cryptography.hazmat.primitives.ciphers.aead"]
"""What Flower imports for its SuperLink; Flower itself reads variables that fedpm sets before."""

for name in PACKAGES + SERVER:
    with suppress(ImportError):
        import_module(name)
