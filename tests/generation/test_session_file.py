"""Session files: saved in one process and continued in another, shared with mlx-lm, refused when they are not right."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import cache as mlx_lm_cache

from mlxgen import load
from mlxgen.generation.fingerprint import fingerprint
from mlxgen.generation.session import Session
from mlxgen.generation.session_file import SessionFileError, write
from mlxgen.model import Model

from ..support import oracles
from ..support.models import letter_tokenizer, tiny_gpt2
from ..support.processes import KILLED, dying_script

N = 48


TINY = tiny_gpt2(tokenizer=letter_tokenizer(), n_positions=N, n_ctx=N, n_layer=3, layer_norm_epsilon=1e-5)


def written(folder: Path, **changes: int) -> Path:
    """A model folder; a token is a byte."""
    return tiny_gpt2(tokenizer=letter_tokenizer(), **{**TINY.entries, **changes}).write(folder, "model.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(str(folder))


KINDS = [{}, {"max_kv_size": 20, "keep": 3}, {"keep": 5, "overflow": "slide"}, {"max_kv_size": 64, "overflow": "slide"}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("before", [3, 17, 30])
def test_a_loaded_session_goes_on_as_if_it_had_never_stopped(model, tmp_path, kind, before):
    options = {"temperature": 0.9, "top_k": 20, "seed": 5, "ignore_eos": True}
    session = Session(model, **kind)
    session.generate("Once upon a", max_tokens=before, **options)
    loaded = Session.load(session.save(tmp_path / "tale"), model)
    assert loaded.tokens == session.tokens and loaded.cache_length == session.cache_length
    for one in (session, loaded):
        one.rewind(1)
        one.generate("b", max_tokens=5, **options)
    assert loaded.tokens == session.tokens
    for one in (session, loaded):
        one.rewind(4)
        one.generate(max_tokens=30, **options)
    assert loaded.tokens == session.tokens


def test_another_process_gives_the_same_tokens(model, folder, tmp_path):
    options = {"seed": 9, "ignore_eos": True}
    session = Session(model, overflow="slide")
    session.generate("The king", max_tokens=60, **options)
    path = session.save(tmp_path / "king.safetensors")
    expected = session.generate(max_tokens=30, **options).tokens
    script = (
        "import sys, mlxgen\n"
        "session = mlxgen.Session.load(sys.argv[2], mlxgen.load(sys.argv[1]))\n"
        "print(session.generate(max_tokens=30, seed=9, ignore_eos=True).tokens)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, folder, path], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == expected


def test_notes_come_back(model, tmp_path):
    session = Session(model)
    session.extend("a")
    path = write(session.state, model, tmp_path / "x", {"turns": ["ä", 1]})
    assert path.name == "x.safetensors"
    assert Session.from_file(tmp_path / "x", model)[1] == {"turns": ["ä", 1]}


@pytest.mark.parametrize("kind", [{}, {"max_kv_size": 64}, {"max_kv_size": 12}], ids=str)
def test_mlx_lm_opens_our_file(model, tmp_path, kind):
    session = Session(model, **kind)
    session.generate("Once upon a time", max_tokens=6, seed=1, ignore_eos=True)
    path = session.save(tmp_path / "s")
    theirs, metadata = mlx_lm_cache.load_prompt_cache(str(path), return_metadata=True)
    assert json.loads(metadata["tokens"]) == session.tokens
    assert [type(layer).__module__ for layer in theirs] == ["mlx_lm.models.cache"] * 3
    logits = model.decoder(mx.array([session.tokens[-1:]]), theirs)[0, -1]
    np.testing.assert_allclose(np.array(logits), np.array(session.prefill())[0], atol=1e-5)


def test_mlx_lms_generate_goes_on_from_our_file(folder, model, tmp_path, monkeypatch, capsys):
    """Its command reads the model's place from the file; what it has not processed is the newest token."""
    from importlib import import_module

    session = Session(model)
    session.generate("Once upon a time", max_tokens=3, temperature=0, ignore_eos=True)
    path = session.save(tmp_path / "tale")
    session.tokens.pop()
    expected = oracles.torch_greedy(TINY.torch(), [*session.tokens, *model.tokenizer.encode("the")], 8)
    arguments = ["--prompt-cache-file", str(path), "--prompt", "the", "--max-tokens", "8", "--temp", "0"]
    monkeypatch.setattr("sys.argv", ["mlx_lm.generate", *arguments, "--verbose", "False"])
    import_module("mlx_lm.generate").main()
    assert capsys.readouterr().out.strip("\n") == model.tokenizer.decode(expected).strip("\n")


@pytest.mark.parametrize("size", [None, 64])
def test_a_file_of_mlx_lm_opens_here(model, tmp_path, size):
    tokens = model.tokenizer.encode("Once upon a time")
    theirs = mlx_lm_cache.make_prompt_cache(model.decoder, size)
    mx.eval(model.decoder(mx.array([tokens]), theirs))
    mlx_lm_cache.save_prompt_cache(str(tmp_path / "p.safetensors"), theirs, {"model": "somewhere"})
    session = Session.load(tmp_path / "p.safetensors", model)
    assert session.room == N - len(tokens)
    with pytest.raises(ValueError, match="which tokens"):
        session.generate(max_tokens=1)
    got = session.generate(" there", max_tokens=8, temperature=0, ignore_eos=True).tokens
    assert session.computed == len(" there") + 7
    whole = Session(model)
    assert got == whole.generate("Once upon a time there", max_tokens=8, temperature=0, ignore_eos=True).tokens


def test_files_of_other_models_are_refused(model, tmp_path):
    session = Session(model)
    session.generate("abc", max_tokens=2, seed=0)
    path = session.save(tmp_path / "s")
    for name, changes in {"deeper": {"n_layer": 4}, "other": {}}.items():
        other = load(str(written(tmp_path / name, seed=2, **changes)))
        with pytest.raises(SessionFileError, match="another model"):
            Session.load(path, other)
    theirs = mlx_lm_cache.load_prompt_cache(str(path))
    mlx_lm_cache.save_prompt_cache(str(tmp_path / "theirs.safetensors"), theirs)
    wide = load(str(written(tmp_path / "wide", n_head=8)))
    with pytest.raises(SessionFileError, match="another model"):
        Session.load(tmp_path / "theirs.safetensors", wide)


def test_one_changed_weight_matrix_is_another_model(model):
    layer, before = model.decoder.model.h[1].mlp.c_fc, fingerprint(model)
    weight = layer.weight
    layer.weight = weight * 1.01
    changed = fingerprint(model)
    layer.weight = weight
    assert changed != before == fingerprint(model)


def test_the_fingerprint_does_not_depend_on_how_weights_are_laid_out(model, folder):
    from mlxgen.weights.load import open_decoder

    assert fingerprint(replace(model, decoder=open_decoder(folder))) == fingerprint(model)


def test_a_truncated_or_edited_file_is_refused(model, tmp_path):
    session = Session(model)
    session.generate("abcdef", max_tokens=2, seed=0)
    path = session.save(tmp_path / "s")
    whole = path.read_bytes()
    for length in (0, 4, 9, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(SessionFileError, match="not a readable session file"):
            Session.load(path, model)
    for at in np.random.default_rng(0).integers(0, len(whole), 60):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(SessionFileError):
            Session.load(path, model)
    one, two = (f'"[{first},'.encode() for first in (session.tokens[0], session.tokens[0] + 1))
    assert whole.count(one) == 1
    path.write_bytes(whole.replace(one, two))
    with pytest.raises(SessionFileError, match="changed after"):
        Session.load(path, model)
    path.write_bytes(whole)
    assert Session.load(path, model).tokens == session.tokens


def test_files_that_are_something_else_are_refused(model, folder, tmp_path):
    with pytest.raises(SessionFileError, match="No such file"):
        Session.load(tmp_path / "none", model)
    with pytest.raises(SessionFileError):
        Session.load(tmp_path, model)
    mx.save_safetensors(str(tmp_path / "bare.safetensors"), {"a": mx.zeros(3)})
    for weights in (tmp_path / "bare.safetensors", folder / "model.safetensors"):  # without metadata, and with
        with pytest.raises(SessionFileError, match="no prompt cache"):
            Session.load(weights, model)
    (tmp_path / "text.safetensors").write_text("Once upon a time " * 9)
    with pytest.raises(SessionFileError, match="not a readable session file"):
        Session.load(tmp_path / "text.safetensors", model)
    with pytest.raises(SessionFileError, match="cannot save"):
        Session(model).save(tmp_path / "no" / "such" / "folder")


def test_an_empty_session_can_be_saved(model, tmp_path):
    path = Session(model).save(tmp_path / "empty")
    assert Session.load(path, model).tokens == []
    assert mlx_lm_cache.load_prompt_cache(str(path))[0].offset == 0


@pytest.mark.parametrize("part", [0, 0.5, 0.99])
def test_killed_while_saving_the_old_file_is_whole(model, folder, tmp_path, part):
    session = Session(model)
    path = session.save(tmp_path / "s")
    session.generate("Once upon a time", max_tokens=20, seed=1, ignore_eos=True)
    size = session.save(tmp_path / "whole").stat().st_size
    script = (
        "session = mlxgen.Session(mlxgen.load(sys.argv[2]))\n"
        "session.generate('Once upon a time', max_tokens=20, seed=1, ignore_eos=True)\n"
        "session.save(sys.argv[3])\n"
    )
    command = dying_script(int(part * size), script, str(folder), str(path))
    killed = subprocess.run(command, check=False, capture_output=True, timeout=120)
    assert killed.returncode == KILLED, killed.stderr
    assert Session.load(path, model).tokens == []
    assert len(list(tmp_path.glob(".s.*"))) == 1, "what was written lies beside it"
    assert Session.load(session.save(path), model).tokens == session.tokens
    assert list(tmp_path.glob(".s.*")) == []


def test_only_a_session_or_a_prompt_cache_is_replaced(model, folder, tmp_path):
    session = Session(model)
    session.generate("abc", max_tokens=2, seed=0)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes((folder / "model.safetensors").read_bytes())
    text = tmp_path / "text.safetensors"
    text.write_text("Once upon a time " * 9)
    for path in (weights, text):
        before = path.read_bytes()
        with pytest.raises(SessionFileError, match="is not a session file, so it is not replaced") as caught:
            session.save(path)
        assert path.read_bytes() == before and "\n" not in str(caught.value)
    theirs = mlx_lm_cache.load_prompt_cache(str(session.save(tmp_path / "ours")))
    mlx_lm_cache.save_prompt_cache(str(tmp_path / "theirs.safetensors"), theirs)
    (tmp_path / "empty.safetensors").touch()
    for name in ("ours", "theirs", "empty"):
        assert Session.load(session.save(tmp_path / name), model).tokens == session.tokens


@pytest.mark.parametrize("name", ["1.9999999", "9999999.a", "2.0.9999999", "1" + ".a" * 5000, "1.99999999999999999999"])
def test_a_name_that_would_make_a_long_list_is_refused(model, tmp_path, name):
    cache = mlx_lm_cache.make_prompt_cache(model.decoder)
    model.decoder(mx.array([[1, 2, 3]]), cache)
    file = tmp_path / "cache.safetensors"
    mlx_lm_cache.save_prompt_cache(str(file), cache)
    assert Session.load(file, model).cache_length == 3
    arrays, metadata = mx.load(str(file), return_metadata=True)
    mx.save_safetensors(str(file), arrays, {**metadata, name: "x"})
    with pytest.raises(SessionFileError, match="is not one of a session"):
        Session.load(file, model)


def test_keys_that_are_whole_numbers_are_refused(model, tmp_path):
    cache = mlx_lm_cache.make_prompt_cache(model.decoder)
    model.decoder(mx.array([[1, 2, 3]]), cache)
    for layer in cache:
        layer.keys = layer.keys.astype(mx.int32)
    mlx_lm_cache.save_prompt_cache(str(tmp_path / "cache.safetensors"), cache)
    with pytest.raises(SessionFileError, match="not floating-point numbers"):
        Session.load(tmp_path / "cache.safetensors", model)
