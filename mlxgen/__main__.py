"""The entry point of `python -m mlxgen` and of the command `mlxgen`."""

import sys


def start() -> None:
    """Run the terminal program. Ctrl-C during its import ends it with status 130, without a message."""
    try:
        from mlxgen.cli.main import main

        main(prog_name="mlxgen")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    start()
