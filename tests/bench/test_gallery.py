"""The comparison of the gallery's models with batched torch runs, and both sides compute the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.gallery.__main__ import difference, entry, main
from bench.gallery.peers import PEERS


@pytest.mark.parametrize("name", PEERS)
def test_torch_computes_what_the_model_says(name: str) -> None:
    one = entry(name, 5)
    assert difference(one, one.batches(1)[0]) < 1e-8


def test_every_row_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gallery.json"
    main(["gru_tagger", "--batch", "3", "--seconds", "0", "--turns", "1", "--updates", "2", "--json", str(path)])
    assert "gru_tagger" in capsys.readouterr().out
    (found,) = json.loads(path.read_text())["models"]
    assert found["ours"] > 0
    assert found["eager"] > 0
    assert found["ratio"] == pytest.approx(found["ours"] / found["torch"])


def test_the_command_knows_its_models(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bert"])
    assert "gru_tagger" in capsys.readouterr().err
