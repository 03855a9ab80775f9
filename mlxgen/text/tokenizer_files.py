"""The files beside a vocabulary: settings, added and special tokens, the chat template."""

import operator
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import tokenizers

from mlxgen.errors import ModelError, reason_of
from mlxgen.installation import install_command
from mlxgen.json_file import describe, read_json
from mlxgen.text.panic_lines import without_panic_lines

MAX_BYTES = 64 << 20  # a settings file may list every token
OTHER_VOCABULARIES = ("vocab.txt", "spiece.model", "spm.model", "tokenizer.model", "sentencepiece.bpe.model")
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
T = TypeVar("T")


def read_settings(folder: Path) -> dict[str, Any]:
    """Read tokenizer_config.json and merge special_tokens_map.json as transformers does. {} if neither exists."""
    path = folder / "tokenizer_config.json"
    settings = read_json(path, MAX_BYTES) if path.is_file() else {}
    path = folder / "special_tokens_map.json"
    special = read_json(path, MAX_BYTES) if path.is_file() else {}
    # A config that lists its added tokens has the newer format and takes precedence.
    return special | settings if "added_tokens_decoder" in settings else settings | special


def add_tokens(library: tokenizers.Tokenizer, folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Add the tokens that the settings and files list, in transformers' order, so that they get the same ids.

    Returns the text of each special token by its role, such as "eos_token".
    """
    roles = {
        role: _added_token(value, folder, special=True)
        for role, value in settings.items()
        if role.endswith("_token") and value and not isinstance(value, bool)
    }
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    extra = extra.values() if isinstance(extra, dict) else extra
    if not isinstance(extra, Iterable) or isinstance(extra, str):
        raise ModelError(
            f"the tokenizer settings in {folder} have special tokens that are not a list: {describe(extra)}"
        )
    special = [roles[role] for role in SPECIAL_TOKENS if role in roles]
    special += [_added_token(value, folder, special=True) for value in extra]
    special += [token for role, token in roles.items() if role not in SPECIAL_TOKENS]
    listed = _listed_tokens(folder, settings, {token.content for token in special})
    library.add_tokens([token for _, token in listed])
    if not (folder / "tokenizer.json").is_file():
        _check_ids(library, folder, listed)
    known = {added.content for added in library.get_added_tokens_decoder().values()}
    new = {token.content: token for token in reversed(special) if token.content not in known}
    library.add_special_tokens(list(reversed(new.values())))  # only new ones: adding again would replace the flags
    return {role: token.content for role, token in roles.items()}


def _listed_tokens(
    folder: Path, settings: Mapping[str, Any], special: set[str]
) -> list[tuple[int, tokenizers.AddedToken]]:
    """The added tokens that have ids, and the ids, in order. The library assigns ids from its vocabulary's end on."""
    listed = settings.get("added_tokens_decoder")
    older = folder / "added_tokens.json"
    numbered: list[tuple[int, tokenizers.AddedToken]] = []
    try:
        if listed is not None:
            numbered = [(int(at), _added_token(value, folder, special=False)) for at, value in listed.items()]
        elif older.is_file():
            numbered = [
                (int(at), tokenizers.AddedToken(text, special=text in special, normalized=text not in special))
                for text, at in read_json(older, MAX_BYTES).items()
            ]
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ModelError(f"the list of added tokens in {folder} is invalid: download it again") from None
    return sorted(numbered, key=operator.itemgetter(0))


def _check_ids(library: tokenizers.Tokenizer, folder: Path, listed: list[tuple[int, tokenizers.AddedToken]]) -> None:
    """Raise ModelError where a list of added tokens has a gap, since the library numbers them without one."""
    for number, token in listed:
        own = library.token_to_id(token.content)
        if own != number:
            raise ModelError(
                f"the added token {token.content!r} in {folder} has the id {number}, but {own} would be next: added "
                "tokens must follow the vocabulary without a gap; number them so, or give a tokenizer.json"
            )


def _added_token(value: Any, folder: Path, *, special: bool) -> tokenizers.AddedToken:
    if isinstance(value, str):
        return tokenizers.AddedToken(value, special=special)
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        flags = {flag: bool(value[flag]) for flag in ("single_word", "lstrip", "rstrip", "normalized") if flag in value}
        return tokenizers.AddedToken(value["content"], special=special or bool(value.get("special")), **flags)
    raise ModelError(f"the tokenizer settings in {folder} have a token that is not text: {describe(value)}")


def chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The source of the chat template: chat_template.jinja, or the one in the settings; None if there is none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return load_or_raise(path, lambda: path.read_text(encoding="utf-8"))
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def load_or_raise(path: Path, build: Callable[[], T]) -> T:
    """Call ``build()`` and convert any error to a one-line ModelError."""
    try:
        with without_panic_lines():
            return build()
    except ImportError as error:
        if "sentencepiece" in str(error).lower():
            way_out = f"sentencepiece: `{install_command('sentencepiece')}`"
            raise ModelError(f"the tokenizer in {path} needs {way_out}") from error
        raise ModelError(
            f"the tokenizer in {path} needs a package that is not installed: {reason_of(error)}"
        ) from error
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # panics of the tokenizers library derive from BaseException
        raise ModelError(f"cannot read the tokenizer file {path}: {reason_of(error)}") from error
