"""``python -m fedpm.cli``."""

from fedpm.cli import main

main()
