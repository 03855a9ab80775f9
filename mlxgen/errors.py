"""What goes wrong, in one line: what it is, where, and the way out."""


class MlxgenError(Exception):
    """Base of every error that mlxgen raises on purpose. Its text is one line a user can act on."""


class OptionError(MlxgenError, ValueError):
    """An option or argument that cannot be used as given (the terminal exits with status 2)."""


class ModelError(MlxgenError):
    """A model that cannot be opened: its folder, config, weights, tokenizer or download."""


class ContextError(MlxgenError, ValueError):
    """A prompt that does not fit into the position table."""


class NumericError(MlxgenError, ArithmeticError):
    """Logits that are not finite."""


def check_whole(name: str, value: object, least: int) -> None:
    """Raise OptionError unless the option's value is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} must be a whole number of at least {least}, not {value!r}")
