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


def reason_of(error: BaseException, width: int = 200) -> str:
    """Why something failed, short and on one line: the system's words for an OSError, else the message's first line.

    The name of the error's type stands in for an empty message.
    """
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0].strip()[:width]


def printable(name: str, width: int = 80) -> str:
    """A name from an untrusted file, escaped and cut so that it fits into a one-line message."""
    return name[:width] if name.isprintable() else ascii(name)[1:-1][:width]
