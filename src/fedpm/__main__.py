"""``python -m fedpm``: the command line, where its script is not on the path."""

from fedpm.cli import main

main()
