"""Every workload, on small data written as the real ones are: it trains, is saved, evaluates to the same numbers, and
answers."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from math import nan
from pathlib import Path

import numpy as np
import pytest
import torch

from ampnet import Inline
from ampnet.checkpoint.tensors import decode
from ampnet.cli import main
from ampnet.cli import train as command
from ampnet.cli.progress import Plain
from ampnet.data import load
from ampnet.data.qm9 import CHEMICAL_ACCURACY
from ampnet.data.word_vectors import WordVectors
from ampnet.experiments.catalog import WORKLOADS
from ampnet.experiments.saved import read
from ampnet.experiments.sentiment import NO_VECTORS
from ampnet.experiments.workload import measured
from ampnet.fitting import FitInterrupted, FitResult
from tests.cli.test_train import interrupting, lines
from tests.data.conftest import root
from tests.data.small import write_vectors
from tests.experiments.test_molecules import WATER
from tests.experiments.test_saved import forged

__all__ = ["root"]

SMALL = {
    "mnist": "--bucket 5",
    "list-reduction": "--train-size 400 --valid-size 100 --hidden 16",
    "sentiment": "--hidden 8",
    "babi15": "--train-size 6 --valid-size 20 --size 12",
    "qm9": "--hidden 16 --steps 2",
    "permuted-layers": "--train-size 50 --valid-size 20",
    "adaptive-depth": "--train-size 50 --valid-size 20 --hidden 8",
}
"""What makes each of them a matter of a moment."""
NEW = ("waves", "keep", "weight_decay")
"""Settings of all workloads that there were not from the start."""
Trained = Callable[..., Path]


@pytest.fixture
def trained(root: Path, tmp_path: Path) -> Trained:
    """Trains a workload for an epoch and saves it."""

    def train(name: str, *more: str) -> Path:
        file = tmp_path / f"{name}.safetensors"
        where = ["--data-dir", str(root)] if WORKLOADS[name].files else []
        argv = ["train", name, *SMALL[name].split(), *where, "--epochs", "1", "--quiet", "--save", str(file), *more]
        assert main(argv) == 0
        return file

    return train


def test_every_workload_is_tested() -> None:
    assert set(SMALL) == set(WORKLOADS)


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_was_measured_is_measured_again(
    name: str, trained: Trained, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, again = tmp_path / "run.json", tmp_path / "again.json"
    file = trained(name, "--json", str(report))
    workload = WORKLOADS[name]
    first, second = lines(capsys)
    assert first.startswith(f"{name}: {workload.metric} ")
    assert f" {workload.unit}/s" in first
    assert second.startswith("saved the model of epoch 1 (")
    assert main(["evaluate", str(file), "--data-dir", str(root), "--json", str(again)]) == 0
    (line,) = lines(capsys)
    was, found = json.loads(report.read_text()), json.loads(again.read_text())
    history = was["history"][0]
    assert found["metrics"] == pytest.approx(history["valid_metrics"], rel=1e-5)
    assert found["loss"] == pytest.approx(history["valid_loss"], rel=1e-5)
    assert found["trained"] == {"metric": workload.metric, "value": was["value"], "epoch": 1}
    assert line.startswith(f"{name}, {found['split']}: loss {found['loss']:.4f}, {workload.metric} ")
    assert sorted(tmp_path.glob("*.*")) == sorted([file, report, again])


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_settings_of_the_paper(name: str) -> None:
    settings = WORKLOADS[name].settings().complete()
    paper = {"mnist": (4, 1), "list-reduction": (4, 1), "sentiment": (16, 50), "babi15": (16, 2), "qm9": (16, 32)}
    if name in paper:
        assert (settings.max_active_keys, settings.min_update_frequency) == paper[name]
    if name == "sentiment":
        assert (settings.update_after, settings.count) == ({"embedding": 1000}, "messages")
    if name == "mnist":
        assert (settings.optimizer, settings.learning_rate) == ("sgd", 0.1)


@pytest.mark.parametrize(
    ("name", "count"), [("mnist", 7), ("list-reduction", 30), ("sentiment", 2), ("babi15", 3), ("qm9", 4)]
)
def test_a_limit_is_on_training_and_validation(name: str, count: int, trained: Trained, root: Path) -> None:
    saved = read(trained(name, "--limit", str(count)))
    data = saved.workload.load(saved.settings, root)
    whole = saved.workload.load(WORKLOADS[name].settings(**_sizes(name)), root).splits[measured(data)]
    assert len(data.train) == count
    assert len(data.splits[measured(data)]) == min(count, len(whole))


def test_a_model_trained_with_a_limit_is_evaluated_on_all_records(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    file = trained("adaptive-depth", "--limit", "10")
    valid = _sizes("adaptive-depth")["valid_size"]
    for more, records in (([], valid), (["--limit", "10"], 10)):
        assert main(["evaluate", str(file), *more]) == 0
        assert f" over {records} points;" in capsys.readouterr().out


def _sizes(name: str) -> dict[str, int]:
    words = SMALL[name].split()
    pairs = zip(words[::2], words[1::2], strict=True)
    return {option[2:].replace("-", "_"): int(value) for option, value in pairs}


def test_two_workers_train_and_save_a_tree_model(trained: Trained, root: Path) -> None:
    saved = read(trained("sentiment", "--workers", "2", "--epochs", "2"))
    graph = saved.graph()
    assert all(torch.equal(mine, saved.state[name]) for name, mine in graph.model.state_dict().items())


def test_a_model_from_before_a_setting_has_its_default(trained: Trained) -> None:
    file = trained("adaptive-depth")
    _, metadata = decode(file.read_bytes(), file)
    settings = json.loads(metadata["settings"])
    forged(file, settings=json.dumps({name: settings[name] for name in settings if name not in NEW}))
    settings, defaults = read(file).settings, WORKLOADS["adaptive-depth"].settings()
    assert all(getattr(settings, name) == getattr(defaults, name) for name in NEW)


def test_the_error_of_molecules_may_be_the_absolute_one(trained: Trained, tmp_path: Path) -> None:
    """Then loss and metric are the same, but for their units: the loss is in deviations of the dipole moments."""
    report = tmp_path / "run.json"
    saved = read(trained("qm9", "--loss", "absolute", "--json", str(report)))
    record = json.loads(report.read_text())["history"][0]
    unit = saved.facts["std"] / CHEMICAL_ACCURACY
    assert record["valid_metrics"]["absolute_error"] == pytest.approx(unit * record["valid_loss"], rel=1e-5)
    trained("qm9", "--json", str(report))
    record = json.loads(report.read_text())["history"][0]
    assert record["valid_metrics"]["absolute_error"] != pytest.approx(unit * record["valid_loss"], rel=1e-2)


def test_nodes_that_are_not_named_keep_the_numbers_of_the_workload(trained: Trained) -> None:
    settings = read(trained("sentiment", "--update-after", "classify=3")).settings
    assert settings.update_after == {"embedding": 1000, "classify": 3}


def test_vectors_are_where_the_embedding_begins(trained: Trained, root: Path) -> None:
    """The rate is so small that nothing moves."""
    slow = ("--lr", "1e-30", "--rate-of", "embedding=1e-30", "--optimizer", "sgd")
    saved = read(trained("sentiment", *slow))
    weight, words = saved.state["embedding.weight"], saved.facts["vocabulary"]
    assert weight.shape == (len(words) + 1, 300)
    assert torch.equal(weight[-1], torch.zeros(300))
    vectors = load("wordvec300", root)
    assert isinstance(vectors, WordVectors)
    torch.testing.assert_close(weight[:-1], torch.from_numpy(vectors.rows(words)))
    assert read(trained("sentiment", *slow, "--vectors", "glove50")).state["embedding.weight"].shape[1] == 50


def test_data_that_are_not_there(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in ("mnist", "sentiment", "qm9"):
        assert main(["train", name, "--data-dir", str(empty)]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "not found in " in error
        assert "'ampnet data get " in error
    (root / "wordvec300" / "spacy_md_300d_sst.npz").unlink()
    assert main(["train", "sentiment", "--data-dir", str(root), "--vectors", "wordvec300"]) == 1
    assert "--vectors takes glove300, glove50, random" in capsys.readouterr().err


def test_a_run_says_which_word_vectors_it_has(trained: Trained, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The best on this machine; none: how to get them, and what to expect without."""
    argv = ["train", "sentiment", *SMALL["sentiment"].split(), "--data-dir", str(root), "--epochs", "1"]

    def first_line() -> str:
        capsys.readouterr()
        assert main(argv) == 0
        return capsys.readouterr().out.splitlines()[0]

    assert first_line() == f"word vectors: wordvec300 ({root / 'wordvec300' / 'spacy_md_300d_sst.npz'})"
    write_vectors(root / "glove", "glove_6B_300d_sst.npz", 300)
    assert first_line() == f"word vectors: glove300 ({root / 'glove' / 'glove_6B_300d_sst.npz'})"
    assert read(trained("sentiment")).settings.vectors == "glove300", "what was found is what is saved"
    shutil.rmtree(root / "glove")
    shutil.rmtree(root / "wordvec300")
    assert first_line() == NO_VECTORS and "'ampnet data get glove'" in NO_VECTORS
    assert read(trained("sentiment")).state["embedding.weight"].shape[1] == 300


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_saves_what_was_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, at_once = Inline.run, {"turn_seconds": 0.0}
    monkeypatch.setattr(Inline, "run", lambda *args, **settings: run(*args, **settings | at_once))
    monkeypatch.setattr(Plain, "epoch", interrupting(1))
    file = tmp_path / "model.safetensors"
    argv = ["train", "list-reduction", *SMALL["list-reduction"].split(), "--epochs", "50", "--save", str(file)]
    assert main(argv) == 130
    *_, last = lines(capsys)
    epoch = read(file).reached["epoch"]
    assert last.startswith(f"saved the model of epoch {epoch} (accuracy ")
    assert 1 <= epoch < 50


def test_the_best_epoch_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rate that grows wild: later epochs are not better ones."""
    file, report = tmp_path / "model.safetensors", tmp_path / "run.json"
    wild = ("--epochs", "6", "--lr", "0.3", "--decay", "1", "--seed", "1")
    argv = ["train", "adaptive-depth", *SMALL["adaptive-depth"].split(), *wild, "--save", str(file)]
    assert main([*argv, "--json", str(report)]) == 0
    history = json.loads(report.read_text())["history"]
    errors = [record["valid_metrics"]["absolute_error"] for record in history]
    assert min(errors) < errors[-1]
    assert read(file).reached["value"] == min(errors)
    assert main(["evaluate", str(file)]) == 0
    assert f"absolute_error {min(errors):.4f} over" in lines(capsys)[-1]


def test_nothing_is_saved_before_the_first_epoch_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = FitResult("accuracy", nan, 0, None, False, 0, 0.0, None, nan, None, 0, ())

    def interrupted(*args: object, **settings: object) -> FitResult:
        raise FitInterrupted(nothing)

    monkeypatch.setattr(command, "fit", interrupted)
    argv = ["train", "list-reduction", *SMALL["list-reduction"].split(), "--save", str(tmp_path / "model.safetensors")]
    assert main(argv) == 130
    assert "was not written: no epoch was finished" in lines(capsys)[-1]
    assert list(tmp_path.iterdir()) == []


# -- evaluate


def test_the_splits(trained: Trained, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = trained("sentiment")
    capsys.readouterr()
    for split, count in (("train", 3), ("valid", 2), ("test", 1)):
        assert main(["evaluate", str(file), "--split", split, "--data-dir", str(root)]) == 0
        assert f"sentiment, {split}: " in (line := lines(capsys)[0])
        assert f" over {count} trees; " in line
    assert main(["evaluate", str(trained("babi15")), "--split", "test"]) == 2
    assert "--split: babi15 has no test records; there are train, valid" in capsys.readouterr().err


def test_a_file_that_is_no_model(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every kind of fault is in tests/experiments/test_saved.py; here, that commands say it in one line."""
    good = trained("adaptive-depth").read_bytes()
    capsys.readouterr()
    text, cut, old, unknown, bent = (tmp_path / f"{n}.safetensors" for n in range(5))
    text.write_text("not a model\n")
    cut.write_bytes(good[: len(good) // 2])
    torch.save({"kind": "ampnet model", "format": 1}, old)
    for file, changes in ((unknown, {"workload": "chess"}), (bent, {"state": {}})):
        file.write_bytes(good)
        forged(file, **changes)
    for file, said in (
        (text, "not a model that 'ampnet train ... --save' wrote, or damaged"),
        (cut, "not a model that 'ampnet train ... --save' wrote, or damaged"),
        (old, "a pickle, as torch.save and earlier versions of ampnet wrote them"),
        (unknown, "a model of 'chess', which is not known; there are mnist, "),
        (bent, "its weights are not those of the adaptive-depth model"),
    ):
        for argv in (["evaluate", str(file)], ["predict", str(file), "1 0 1"]):
            assert main(argv) == 1
            error = capsys.readouterr().err
            assert error.startswith(f"ampnet: {file}: ")
            assert said in error
            assert error.count("\n") == 1
    assert main(["evaluate", str(tmp_path / "none.safetensors")]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path)]) == 2
    assert f"{tmp_path} is a folder; give a file" in capsys.readouterr().err


def test_another_edition_of_the_data(
    trained: Trained, root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = trained("sentiment")
    facts = dict(read(file).facts)
    forged(file, facts=json.dumps({**facts, "vocabulary": ["else", *facts["vocabulary"][1:]]}))
    assert main(["evaluate", str(file), "--data-dir", str(root)]) == 1
    assert "that the model was trained with" in capsys.readouterr().err


# -- predict

QUESTIONS = {
    "list-reduction": (["range", "3", "7", "1"], "range 3 7 1: "),
    "sentiment": (["(It (good frobnicates))"], "  It good frobnicates"),
    "babi15": (["Mice are afraid of wolves. Emily is a mouse. What is Emily afraid of?"], "What is Emily afraid of? "),
    "adaptive-depth": (["1, 0, 3"], "(1, 0) turned 3 times: ("),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer(name: str, trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, answers = trained(name), tmp_path / "answers.json"
    capsys.readouterr()
    inputs, said = QUESTIONS[name]
    assert main(["predict", str(file), *inputs, "--json", str(answers)]) == 0
    assert said in capsys.readouterr().out
    (answer,) = json.loads(answers.read_text())["answers"]
    if "probabilities" in answer:
        shares = answer["probabilities"]
        assert sum(shares.values() if isinstance(shares, dict) else shares) == pytest.approx(1)


def test_an_answer_is_the_eager_models_own(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    file = trained("list-reduction")
    capsys.readouterr()
    assert main(["predict", str(file), "max-min 3 7 1", "[mean] 4, 4"]) == 0
    first, second = lines(capsys)
    saved = read(file)
    for line, text in ((first, "range 3 7 1"), (second, "mean 4 4")):
        (question,) = saved.workload.ask([text], saved.settings, saved.facts, None)  # type: ignore[arg-type]
        (judged,) = saved.graph().model.judge(question.arguments[0], torch.tensor(0))  # type: ignore[operator]
        assert line.startswith(f"{text}: {int(judged.prediction.argmax())}  (")


def test_a_tree_node_by_node(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, answers = trained("sentiment"), tmp_path / "answers.json"
    capsys.readouterr()
    assert main(["predict", str(file), "(3 (2 It) (4 (2 's) (4 Frobnicates)))", "--json", str(answers)]) == 0
    *nodes, unknown = lines(capsys)
    assert [line.split("  ")[-1] for line in nodes] == [
        "It 's Frobnicates",
        "It",
        "'s Frobnicates",
        "'s",
        "Frobnicates",
    ]
    assert unknown == "not known to the model: Frobnicates"
    (answer,) = json.loads(answers.read_text())["answers"]
    assert answer["nodes"][0]["phrase"] == answer["input"] == "It 's Frobnicates"
    assert answer["class"] == int(np.argmax(answer["nodes"][0]["probabilities"]))


def test_molecules_from_files_and_stdin(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, water = trained("qm9"), tmp_path / "water.mol"
    water.write_text(WATER)
    capsys.readouterr()
    assert main(["predict", str(file), str(water)]) == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO(WATER))
    assert main(["predict", str(file)]) == 0
    first, second = lines(capsys)
    assert first.startswith(f"{water}: dipole moment ")
    assert first.endswith(" D  (3 atoms, hydrogens included)")
    assert second.partition(": ")[2] == first.partition(": ")[2]


def test_smiles_without_rdkit(
    trained: Trained, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    assert main(["predict", str(trained("qm9")), "CCO"]) == 1
    assert "'CCO': SMILES are read by RDKit, which is not installed" in capsys.readouterr().err


def test_images(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from matplotlib.image import imsave

    file, picture, inverse = trained("mnist"), tmp_path / "seven.png", tmp_path / "inverse.png"
    ink = np.zeros((28, 28))
    ink[4:8, 6:20] = ink[4:24, 16:20] = 1
    imsave(picture, ink, cmap="gray", vmin=0, vmax=1)
    imsave(inverse, 1 - ink, cmap="gray", vmin=0, vmax=1)
    capsys.readouterr()
    assert main(["predict", str(file), str(picture), str(inverse)]) == 0
    first, second = (line.partition(": ")[2] for line in lines(capsys))
    assert first == second
    assert main(["predict", str(file), str(inverse), "--invert", "no"]) == 0
    assert lines(capsys)[0].partition(": ")[2] != first


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("list-reduction", "3 4", "word 1, '3': a list begins with its operation, like 'range 3'"),
        ("list-reduction", "sum 3 4", "word 1, 'sum': neither a digit nor an operation; the operations are mean,"),
        ("list-reduction", "mean 3 14", "word 3, '14': a list holds digits from 0 to 9"),
        ("list-reduction", "mean 1 2 3 4 5 6 7 8 9 0", "word 11, '0': a tenth digit"),
        ("list-reduction", "mean 3 range", "no digit after 'range'"),
        ("sentiment", "It is great", "column 1: 'It is great' has no brackets"),
        ("sentiment", "((It) (is great)", "column 17: the tree ends too early: the bracket of column 1 is open"),
        ("babi15", "Mice eat cheese.", "line 1: 'Mice eat cheese.' is neither"),
        ("babi15", "Emily is a mouse.", "there is no question in it"),
        ("babi15", "Emily is a mouse.\nWhat is Bob afraid of?", "line 2: 'What is Bob afraid of?': nothing is told"),
        ("qm9", "none.mol", "there is no file none.mol"),
        ("mnist", "none.png", "there is no file none.png; give an image"),
        ("adaptive-depth", "1, 0", "'1, 0': not a point and how often it is to be turned"),
        ("permuted-layers", "1", "permuted-layers has no input that a person could write"),
    ],
)
def test_input_that_cannot_be_read(
    name: str, given: str, said: str, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    file = trained(name)
    capsys.readouterr()
    assert main(["predict", str(file), given]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"ampnet: {said}")
    assert captured.err.count("\n") == 1


def test_nothing_to_ask(trained: Trained, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = trained("list-reduction")
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert main(["predict", str(file)]) == 1
    assert "there is nothing to ask; list-reduction takes an operation and digits" in capsys.readouterr().err
    assert main(["predict", str(file), "mean 3", "--invert", "yes"]) == 2
    assert "--invert: list-reduction takes no images" in capsys.readouterr().err
