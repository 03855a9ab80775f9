"""The training examples: they learn, resume exactly, agree with each other, and write folders that open."""

import contextlib
import importlib
import io
import re
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import pytest

import mlxgen

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TALE = """Once upon a time there lived a miller who had a daughter and a grey cat. Every morning the cat went down
to the river and asked the river whether the king had passed, and every morning the river said that he had not.

"Then I shall wait," said the cat, and she sat upon the stone until the sun was high. At last the king came by
with twelve horsemen, and the cat bowed and said, "My lord, my master's daughter can spin the river into silver."

"Bring her to me," said the king, "and if she can do it she shall be queen, and if she cannot you shall be a fur
collar." So the cat ran home to the mill and told the miller's daughter all that the king had said to her.
"""
TALES = "\n<|endoftext|>\n".join([TALE, TALE.replace("cat", "fox"), TALE.replace("king", "giant"), TALE])
SMALL = [
    *("--layers", "2", "--width", "64", "--context", "32", "--batch", "2"),
    *("--steps", "16", "--adam-lr", "0.05", "--seed", "3"),
]


@pytest.fixture(autouse=True, scope="module")
def as_found() -> Iterator[None]:
    """The scripts import their shared module from beside them and take over Ctrl-C."""
    handler, threads = signal.getsignal(signal.SIGINT), torch.get_num_threads()
    torch.set_num_threads(1)  # these networks are too small to share out
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))
    signal.signal(signal.SIGINT, handler)
    torch.set_num_threads(threads)


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "train.txt").write_text(TALES)
    (folder / "valid.txt").write_text(TALE.replace("river", "brook"))
    return ["--train", str(folder / "train.txt"), "--valid", str(folder / "valid.txt"), *SMALL]


class Run(NamedTuple):
    """A whole training: the script, the folder that it wrote and what it printed."""

    name: str
    out: Path
    printed: str


def train(name: str, *arguments: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        script(name).main(list(arguments))
    return printed.getvalue()


@pytest.fixture(scope="module", params=["train_fairy_tales", "train_fairy_tales_torch"])
def whole(request: pytest.FixtureRequest, corpus: list[str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("whole") / "run"
    return Run(request.param, out, train(request.param, *corpus, "--out", str(out)))


def losses(printed: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"step \d+/\d+  loss ([\d.]+)", printed)]


def validation(printed: str) -> float:
    return float(re.findall(r"validation ([\d.]+) bits", printed)[-1])


def test_the_loss_falls_and_the_folder_opens(whole, corpus):
    first, mean_of_the_rest = losses(whole.printed)
    assert mean_of_the_rest < first - 0.3

    model = mlxgen.load(str(whole.out))
    recipe = script("fairy_tales_recipe")
    data = recipe.prepare(recipe.options("").parse_args([*corpus, "--out", str(whole.out)]))

    def nats(ids: np.ndarray) -> np.ndarray:
        logits = torch.tensor(np.array(model.decoder(mx.array(ids[:, :-1]))[0], np.float32))
        return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[0, 1:]), reduction="none").numpy()

    # What the script measured is what the opened folder measures; float16 storage costs a little.
    assert recipe.bits_per_character(data, 32, nats) == pytest.approx(validation(whole.printed), abs=0.01)
    assert mlxgen.generate(model, "Once", max_tokens=3, ignore_eos=True, seed=1).tokens


def test_stopping_and_resuming_gives_what_not_stopping_gives(whole, corpus, tmp_path):
    arguments = [*corpus, "--out", str(tmp_path / "halves")]
    train(whole.name, *arguments, "--stop-at", "7")
    printed = train(whole.name, *arguments)
    assert "resuming at step 7" in printed
    assert validation(printed) == pytest.approx(validation(whole.printed), abs=1e-3)


def test_the_training_pass_without_dropout_is_the_decoder():
    training = script("train_fairy_tales")
    config = {"model_type": "gpt2", "vocab_size": 50, "n_positions": 16, "n_embd": 64, "n_layer": 2, "n_head": 2}
    decoder = mlxgen.GPT2(mlxgen.GPT2Config.from_dict(config))
    training.initialise(decoder, mx.random.key(1))
    ids = mx.random.randint(0, 50, (2, 16), key=mx.random.key(2))
    plain = training.training_logits(decoder, ids, 0.0, mx.random.key(3))
    assert mx.allclose(plain, decoder(ids), atol=1e-5)
    assert not mx.allclose(training.training_logits(decoder, ids, 0.5, mx.random.key(3)), plain, atol=1e-2)


@pytest.mark.parametrize("shape", [(8, 24), (24, 8)])
def test_both_muons_make_the_same_steps(shape):
    rng = np.random.default_rng(5)
    start = rng.standard_normal(shape).astype(np.float32)
    ours = script("train_fairy_tales").Muon(0.02, decay=0.05)
    parameters = {"w": mx.array(start)}
    ours.init(parameters)
    theirs_w = torch.nn.Parameter(torch.tensor(start))
    theirs = script("train_fairy_tales_torch").Muon([theirs_w], lr=0.02, weight_decay=0.05)
    for _ in range(3):
        gradient = rng.standard_normal(shape).astype(np.float32)
        parameters = ours.apply_gradients({"w": mx.array(gradient)}, parameters)
        theirs_w.grad = torch.tensor(gradient)
        theirs.step()
    np.testing.assert_allclose(np.array(parameters["w"]), theirs_w.detach().numpy(), atol=1e-4)


@pytest.mark.parametrize("tokens", [2, 30, 33, 48, 49, 100])
def test_validation_counts_every_token_after_the_first_once(tokens):
    recipe = script("fairy_tales_recipe")
    ids = np.arange(tokens)
    data = Namespace(valid=ids, valid_characters=1)
    scored: list[int] = []

    def one_nat(window: np.ndarray) -> np.ndarray:
        scored.append(window.shape[1] - 1)
        return np.ones(window.shape[1] - 1, np.float32)

    assert recipe.bits_per_character(data, 32, one_nat) * np.log(2) == pytest.approx(tokens - 1)
    assert max(scored) <= 32


def test_the_rate_warms_up_stays_and_falls_to_nothing():
    rate = script("fairy_tales_recipe").rate
    assert rate(0, 1000) == 0.01
    assert rate(99, 1000) == rate(600, 1000) == 1.0
    assert rate(800, 1000) == pytest.approx(0.5)
    assert rate(1000, 1000) == 0.0


def test_bad_input_is_told_in_one_line_before_anything_is_written(corpus, tmp_path):
    out = tmp_path / "run"
    for changes, told in (
        (["--batch", "500"], r"^Error: .*too few .* smaller --batch or --context$"),
        (["--width", "100"], r"^Error: --width is 100, which is not a multiple of 64$"),
        (["--train", str(tmp_path / "none.txt")], r"^Error: cannot read .*none\.txt: No such file"),
    ):
        with pytest.raises(SystemExit, match=told):
            script("train_fairy_tales").main([*corpus, "--out", str(out), *changes])
        assert not out.exists()
