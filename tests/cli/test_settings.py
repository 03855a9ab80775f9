"""The table of options agrees with the keyword arguments that it stands for."""

from mlxgen.cli.commands.generate import generate
from mlxgen.cli.options import check_request
from mlxgen.cli.settings import CHAT_SETTINGS, LINE_SETTINGS, SETTINGS
from mlxgen.generation.request import Options, check_options


def test_every_setting_is_a_keyword_argument() -> None:
    names = {setting.name for setting in SETTINGS}
    assert names - set(Options.__annotations__) == {"greedy"}
    assert {*LINE_SETTINGS, *CHAT_SETTINGS} <= names - {"greedy"}


def test_the_defaults_are_those_of_python() -> None:
    context = generate.make_context("generate", ["Once", "--seed", "0"])
    assert check_request(context, context.params) == check_options(seed=0)
