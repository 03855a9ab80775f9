"""mlxgen's errors. Each message is one line that states the cause and what to do."""


class MlxgenError(Exception):
    """The base class of mlxgen's errors. Its message is one line that tells the user what to do."""


class OptionError(MlxgenError, ValueError):
    """An invalid option or argument (the terminal exits with status 2)."""


class ModelError(MlxgenError):
    """A model that cannot be opened: its folder, config, weights, tokenizer or download."""


class ModelWarning(UserWarning):
    """A model that opens, but not entirely as it is stored."""


class ContextError(MlxgenError, ValueError):
    """A prompt that does not fit into the position table."""


class NumericError(MlxgenError, ArithmeticError):
    """Logits that are not finite."""


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise OptionError unless the option's value is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} must be a whole number of at least {least}, not {shown(value)}")
    if most is not None and value > most:
        raise OptionError(f"{name} must be at most {most:,}")


def reason_of(error: BaseException, width: int = 200) -> str:
    """The reason for an error, on one short line.

    This is the system's text for an OSError, otherwise the first line of the message, or the type's name if the message
    is empty. Characters that are not printable are escaped, since a message may quote an untrusted file.
    """
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return printable(str(text).splitlines()[0].strip(), width)


def shown(value: object) -> str:
    """An option's value on one short line, for a message."""
    return printable(repr(value))


def printable(name: str, width: int = 80) -> str:
    """Shorten a name from an untrusted file for a one-line message, with characters that are not printable escaped."""
    start = name[:width]
    if start.isprintable():
        return start
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in start)[:width]
