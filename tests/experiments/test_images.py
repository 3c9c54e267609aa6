"""Image files as the pixels that the model knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imsave

from ampnet import DataError
from ampnet.experiments.images import grey

INK = np.zeros((28, 28))
INK[4:24, 12:16] = 1


def drawn(path: Path, image: np.ndarray) -> Path:
    imsave(path, image, cmap="gray", vmin=0, vmax=1)
    return path


def test_light_ink_on_dark_paper_is_as_it_is_and_the_other_way_round_inverted(tmp_path: Path) -> None:
    light, dark = drawn(tmp_path / "light.png", INK), drawn(tmp_path / "dark.png", 1 - INK)
    for path in (light, dark):
        np.testing.assert_allclose(grey(path, 28), 255 * INK, atol=1e-4)
    np.testing.assert_allclose(grey(dark, 28, invert=False), 255 * (1 - INK), atol=1e-4)
    np.testing.assert_allclose(grey(light, 28, invert=True), 255 * (1 - INK), atol=1e-4)


@pytest.mark.parametrize("times", [2, 3])
def test_a_larger_image_gives_means(times: int, tmp_path: Path) -> None:
    path = drawn(tmp_path / "large.png", 1 - np.kron(INK, np.ones((times, times))))
    np.testing.assert_allclose(grey(path, 28), 255 * INK, atol=1e-4)


def test_an_image_that_is_no_square_gets_paper_at_its_sides(tmp_path: Path) -> None:
    path = drawn(tmp_path / "narrow.png", 1 - INK[:, 8:20])
    np.testing.assert_allclose(grey(path, 28), 255 * INK, atol=1e-4)


def test_a_small_image_is_blown_up(tmp_path: Path) -> None:
    small = grey(drawn(tmp_path / "small.png", 1 - INK[::2, ::2]), 28)
    assert small.shape == (28, 28)
    assert small[14, 14] > 200
    assert small[0, 0] == pytest.approx(0, abs=1e-3)


def test_a_plain_grey_map(tmp_path: Path) -> None:
    path = tmp_path / "plain.pgm"
    path.write_bytes(b"P5 28 28 255\n" + (255 * INK).astype(np.uint8).tobytes())
    np.testing.assert_allclose(grey(path, 28), 255 * INK, atol=1e-4)


def test_what_is_transparent_is_paper(tmp_path: Path) -> None:
    path = tmp_path / "clear.png"
    pixels = np.zeros((28, 28, 4))
    pixels[..., 3] = INK  # black ink, and nothing else
    imsave(path, pixels)
    np.testing.assert_allclose(grey(path, 28), 255 * INK, atol=1e-4)


def test_files_that_are_no_image(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file .*none.png; give an image"):
        grey(tmp_path / "none.png", 28)
    for name in ("text.png", "text.txt"):
        (tmp_path / name).write_text("not an image")
        with pytest.raises(DataError, match="not an image that can be read"):
            grey(tmp_path / name, 28)
