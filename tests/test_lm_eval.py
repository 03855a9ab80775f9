"""mlxgen in lm-evaluation-harness: what the harness's own model for transformers gives on the same folder."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mlxgen
from mlxgen.cli.commands.eval import for_harness
from mlxgen.cli.main import main
from mlxgen.errors import OptionError
from mlxgen.lm_eval import MlxgenLM

from .support.adapters import write_peft
from .support.models import tiny_gpt2

N_POSITIONS = 64
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
LONG = "once far away the king and the frog had " * 4  # longer than the model's context


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_gpt2().write(tmp_path_factory.mktemp("models") / "tiny", chat_template=CHAT))


@pytest.fixture(scope="module")
def ours(folder: str) -> MlxgenLM:
    return MlxgenLM(model=folder, batch_size="auto")


@pytest.fixture(scope="module")
def theirs(folder: str) -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=folder, device="cpu", dtype="float32", batch_size=3)


def requests(kind: Any, *arguments: tuple[Any, ...]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, given, number) for number, given in enumerate(arguments)]


@pytest.mark.parametrize("batch_size", ["auto", "1", 4])
def test_log_likelihoods_and_greedy_flags_are_those_of_hf(ours: MlxgenLM, theirs: Any, batch_size: int | str) -> None:
    greedy = mlxgen.generate(ours.model, "the frog", max_tokens=3, temperature=0, ignore_eos=True).text
    asked = requests(
        "loglikelihood",
        *(("the king said", choice) for choice in (" no", " yes", " far and away")),
        ("", "once upon"),
        ("", "<|endoftext|>once"),
        ("the king ", "said"),  # the space goes to the continuation
        *((LONG, choice) for choice in (" a", " b", " frog and king and frog and king")),
        ("x", LONG[:50]),
        ("the frog", greedy),
        ("the frog", greedy[:1]),
        ("ü", "😀"),
    )
    found = MlxgenLM(model=ours.model, batch_size=batch_size).loglikelihood(asked, disable_tqdm=True)
    expected = theirs.loglikelihood(asked, disable_tqdm=True)
    assert [logprob for logprob, _ in found] == pytest.approx([logprob for logprob, _ in expected], abs=1e-4)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert True in [greedy for _, greedy in found]


def test_rolling_log_likelihoods_are_those_of_hf(ours: MlxgenLM, theirs: Any) -> None:
    asked = requests("loglikelihood_rolling", ("the king",), (LONG,), (LONG * 3,), ("",), ("a",), (LONG[:64],))
    found = ours.loglikelihood_rolling(asked, disable_tqdm=True)
    assert found == pytest.approx(theirs.loglikelihood_rolling(asked, disable_tqdm=True), abs=2e-4)


def test_with_a_stride_rolling_log_likelihoods_are_those_of_score(ours: MlxgenLM) -> None:
    asked = requests("loglikelihood_rolling", ("the king",), (LONG,), ("",))
    found = MlxgenLM(model=ours.model, stride=20).loglikelihood_rolling(asked, disable_tqdm=True)
    assert found == [*(mlxgen.score(ours.model, text, stride=20).total for text in ("the king", LONG)), 0]


def test_generations_are_those_of_hf(ours: MlxgenLM, theirs: Any) -> None:
    greedy = mlxgen.generate(ours.model, "a frog", max_tokens=20, temperature=0).text
    stop = greedy[2:5]  # in two of its tokens
    asked = requests(
        "generate_until",
        ("a frog", {"until": [stop, "never"], "max_gen_toks": 20}),
        ("a frog", {"until": [], "max_gen_toks": 20, "do_sample": False, "temperature": 0.7}),
        ("the king", {"until": "e", "max_gen_toks": 20, "temperature": 0}),
        (LONG, {"until": ["\n\n"], "max_gen_toks": 20, "num_beams": 1}),
        (LONG, {"until": ["\n\n"], "max_gen_toks": 63}),
        ("far", {"until": ["<|endoftext|>"], "max_new_tokens": 5}),
    )
    found = ours.generate_until(asked, disable_tqdm=True)
    assert found == theirs.generate_until(asked, disable_tqdm=True)
    assert found[:2] == [greedy[:2], greedy] and len(set(found)) > 3


def test_sampling_follows_the_seed_of_the_harness(ours: MlxgenLM) -> None:
    import random

    def sampled(seed: int) -> list[str]:
        random.seed(seed)
        given = {"until": [], "max_gen_toks": 8, "do_sample": True, "temperature": 2.0, "top_k": 0, "top_p": 0.9}
        return ours.generate_until(requests("generate_until", *[("the king", given)] * 2), disable_tqdm=True)

    one = sampled(1)
    assert one[0] != one[1] and sampled(1) == one and sampled(2) != one


def test_generation_arguments_that_mean_nothing_here_are_refused(ours: MlxgenLM) -> None:
    for given, message in (
        ({"max_gen_toks": 64}, "max_gen_toks must be less than the 64 positions"),
        ({"max_gen_toks": 8, "num_beams": 4}, "unknown option 'num_beams'"),
        ({"max_gen_toks": 8, "do_sample": True, "top_p": 2.0}, "top_p must be above 0"),
        ({"max_gen_toks": 8, "penalty": 1}, "unknown option 'penalty'"),
    ):
        with pytest.raises(OptionError, match=message):
            ours.generate_until(requests("generate_until", ("a", given)), disable_tqdm=True)


def test_model_arguments_are_checked(folder: str) -> None:
    for given, message in (
        ({"pretrained": "gpt2"}, "unknown model argument 'pretrained'; did you mean model?"),
        ({"peft": "tales"}, "did you mean adapter?"),
        ({"batchsize": 2}, "did you mean batch_size?"),
        ({"batch_size": "many"}, "batch_size must be a whole number or auto, not 'many'"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"max_length": 65}, "max_length must be at most 64"),
        ({"stride": 0}, "stride must be a whole number"),
        ({"device": "cpu"}, "MLXGEN_DEVICE"),
    ):
        with pytest.raises(OptionError, match=message):
            MlxgenLM(**({"model": folder} | given))
    given = MlxgenLM.create_from_arg_string(f"model={folder},dtype=float16,max_length=32", {"device": "cuda:0"})
    assert given.max_length == 32 and given.get_model_info()["model_dtype"] == "float16"


def test_an_adapter_is_merged_as_hf_does(tmp_path: Path, folder: str) -> None:
    from lm_eval.models.huggingface import HFLM

    adapter = write_peft(tmp_path / "adapter", tiny_gpt2())
    ours = MlxgenLM.create_from_arg_string(f"model={folder},adapter={adapter}")
    theirs = HFLM(pretrained=folder, peft=str(adapter), device="cpu", dtype="float32", batch_size=1)
    asked = requests("loglikelihood", ("the frog", " and the king"))
    assert ours.loglikelihood(asked)[0][0] == pytest.approx(theirs.loglikelihood(asked)[0][0], abs=1e-3)
    assert ours.get_model_info()["model_adapter"] == str(adapter)


def test_chat_templates_are_written_as_hf_writes_them(ours: MlxgenLM, theirs: Any) -> None:
    said = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "The king "}]
    for messages, asks in ((said[:1], True), (said, True), (said, False)):
        assert ours.apply_chat_template(messages, asks) == theirs.apply_chat_template(messages, asks)
    assert ours.chat_template(True) == theirs.chat_template(True) == CHAT
    plain = MlxgenLM(model=tiny_gpt2().model())
    with pytest.raises(OptionError, match="has no chat template; leave --apply_chat_template out"):
        plain.apply_chat_template(said, True)


def test_names_and_tokens_are_those_of_hf(ours: MlxgenLM, theirs: Any) -> None:
    for name in ("eot_token_id", "prefix_token_id", "max_length", "tokenizer_name", "max_gen_toks"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.get_model_info()["model_num_parameters"] == theirs.get_model_info()["model_num_parameters"]


QUESTIONS = [
    {"query": "the king had", "choices": ["a horse", "the frog of the king", "no"], "gold": 0},
    {"query": "far far away there was", "choices": ["ü", "once", "the king and the frog"], "gold": 1},
    {"query": "so it was the", "choices": ["king", "frog", "x"], "gold": 2},
    {"query": LONG, "choices": ["king", "frog and so on", "x"], "gold": 2},
]
TASKS = {
    "tiny": """
task: tiny
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: query
doc_to_choice: choices
doc_to_target: gold
metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}]
""",
    "tiny_text": """
task: tiny_text
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: query
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 8}
metric_list: [{metric: exact_match}]
""",
    "tiny_rolling": """
task: tiny_rolling
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: query
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
}


def test_the_command_runs_a_task_and_its_accuracy_is_that_of_hf_and_of_score(
    folder: str, theirs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets.config
    import lm_eval.tasks

    own_tasks = partial(lm_eval.tasks.TaskManager, include_defaults=False)  # not the thousands that are installed
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", own_tasks)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    Path("questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    for name, task in TASKS.items():
        Path(f"{name}.yaml").write_text(task)
    options = ["--include_path", ".", "--tasks", ",".join(TASKS), "--output_path", "ours.json", "--log_samples"]
    done = CliRunner().invoke(main, ["eval", "-m", folder, *options])
    assert done.exit_code == 0, done.output
    unknown = CliRunner().invoke(main, ["eval", "-m", folder, "--tasks", "no_such_task"])
    assert unknown.exit_code == 1 and unknown.stderr.splitlines()[-1].startswith("Error: ValueError: Tasks not found")
    assert "|acc_norm" in done.stdout.replace(" ", "")
    expected = lm_eval.simple_evaluate(theirs, tasks=list(TASKS), task_manager=own_tasks(include_path="."))
    (file,) = tmp_path.glob("ours_*.json")
    found = json.loads(file.read_text())["results"]
    for task in TASKS:
        measures = {name: value for name, value in expected["results"][task].items() if isinstance(value, float)}
        assert measures and {name: found[task][name] for name in measures} == pytest.approx(measures, rel=1e-4)
    (file,) = tmp_path.glob("samples_tiny_text_*.jsonl")
    texts = [json.loads(line)["resps"] for line in file.read_text().splitlines()]
    assert texts == [sample["resps"] for sample in expected["samples"]["tiny_text"]]

    asked = [{"prompt": q["query"], "choices": q["choices"], "answer": q["gold"]} for q in QUESTIONS]
    Path("same.jsonl").write_text("".join(json.dumps(question) + "\n" for question in asked))
    scored = CliRunner().invoke(main, ["score", "-m", folder, "same.jsonl", "--delimiter", " ", "--json"])
    total = json.loads(scored.stdout)["total"]
    for name in ("acc", "acc_norm", "acc_bytes"):
        assert total[name] == expected["results"]["tiny"][f"{name},none"]


def test_a_model_that_is_not_there_is_told_before_the_harness_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxgen.lm_eval.run_command", lambda arguments: pytest.fail("started"))
    done = CliRunner().invoke(main, ["eval", "-m", "./no-model", "--tasks", "x"])
    assert done.exit_code == 1 and done.stderr == "Error: ./no-model: no such folder\n"


def test_the_arguments_of_the_harness_go_to_it_as_they_are() -> None:
    model = {"model": "a,b", "revision": None, "dtype": "float16"}
    ahead = ["run", "--model", "mlxgen", "--batch_size", "auto", "--model_args"]
    assert for_harness(["--tasks", "x"], model) == [*ahead, '{"model": "a,b", "dtype": "float16"}', "--tasks", "x"]
    theirs = ["--model_args", "model=gpt2", "--tasks", "x"]
    given = {"model": "mlxgen", "revision": None, "dtype": None}  # `--model mlxgen`
    assert for_harness(["run", *theirs], given) == [*ahead, "{}", *theirs]
    assert for_harness(["--config=a.yaml"], model) == ["run", "--config=a.yaml"]


def test_without_the_harness_the_error_names_the_command_that_installs_it() -> None:
    script = (
        "import sys\nsys.modules['lm_eval'] = None\nsys.argv[1:] = ['eval', '--tasks', 'x']\n"
        "from mlxgen.cli.main import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("Error: lm-evaluation-harness cannot be imported")
    assert "pip" in done.stderr and "install 'lm-eval>=0.4.13'" in done.stderr
