"""The program ``fedpm``, also as ``python -m fedpm`` where its script is not on the path."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C is one sentence while that is still being loaded, too."""
    try:
        from fedpm.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        print("fedpm: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
