"""`python -m mlxgen` and the command `mlxgen`."""

import sys


def start() -> None:
    """Run the terminal program; Ctrl-C while it is still being imported is told by the exit status alone."""
    try:
        from mlxgen.cli.main import main

        main(prog_name="mlxgen")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    start()
