"""``python -m mlxgen`` is the command ``mlxgen``."""

from mlxgen.cli.main import main

main(prog_name="mlxgen")
