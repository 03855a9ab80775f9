"""`mlxgen completion`: the script that lets a shell complete mlxgen's commands, options and models."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mlxgen.cli.output import write

# The end of each script, where a terminal shows it.
PLACES = {
    "zsh": """
# To use this now and in each new zsh:
#   mlxgen completion zsh > ~/.mlxgen-completion.zsh
#   echo 'source ~/.mlxgen-completion.zsh' >> ~/.zshrc
#   source ~/.zshrc
# To try it in this shell only:
#   eval "$(mlxgen completion zsh)"
""",
    "bash": """
# To use this now and in each new bash (4.4 or later; macOS comes with 3.2):
#   mlxgen completion bash > ~/.mlxgen-completion.bash
#   echo 'source ~/.mlxgen-completion.bash' >> ~/.bashrc
#   source ~/.bashrc
# To try it in this shell only:
#   eval "$(mlxgen completion bash)"
""",
    "fish": """
# To use this now and in each new fish:
#   mkdir -p ~/.config/fish/completions
#   mlxgen completion fish > ~/.config/fish/completions/mlxgen.fish
# To try it in this shell only:
#   mlxgen completion fish | source
""",
}
# compdef is there once zsh's completion has been started, which a bare ~/.zshrc does not do.
ZSH_START = """\
if ! (( $+functions[compdef] )); then
    autoload -Uz compinit
    compinit
fi

"""


@click.command()
@click.argument("shell", type=click.Choice(list(PLACES)), required=False)
@click.pass_context
def completion(ctx: click.Context, /, shell: str | None) -> None:
    """Print the script that completes commands, options and the names of models in a shell, by default in $SHELL.

    Its last lines say where to put it.
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in PLACES:
        raise click.UsageError("say for which shell: zsh, bash or fish", ctx)
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    script = found(ctx.find_root().command, {}, "mlxgen", "_MLXGEN_COMPLETE").source()
    if shell == "zsh":  # after the first line, by which zsh knows the file
        first, rest = script.split("\n", 1)
        script = f"{first}\n\n{ZSH_START}{rest.lstrip()}"
    write(script.rstrip("\n") + "\n" + PLACES[shell])
