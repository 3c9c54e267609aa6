"""An image file as the pixels that MNIST's model knows: 28 by 28, ink high and paper low.

    file ──> grey, 0 to 1 ──> light ink on dark paper ──> square ──> 28 x 28 ──> 0 to 255

MNIST's ink is 255 and its paper 0. Most drawings are the other way round: dark ink on light paper. Which one an image
is can be told by its border, which is paper: where it is light, light and dark change places, unless told otherwise.
"""

from __future__ import annotations

import base64
import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
import torch

from ampnet.errors import DataError

FORMATS = ("PNG", "JPEG", "GIF", "BMP")
"""The formats of images that are sent."""
SIDE = 4096
"""The maximal width and height of an image that is sent."""
GREY = np.array([0.299, 0.587, 0.114])
"""Luminance weights of red, green and blue."""


def grey(path: Path | BytesIO, side: int, invert: bool | None = None) -> np.ndarray:
    """The pixels [side, side] of an image file, 0 (paper) to 255 (ink). ``invert`` None: decided by the border."""
    if isinstance(path, Path) and not path.is_file():
        raise DataError(f"there is no file {path}; give an image, such as a PNG of one digit")
    image = _bright(path)
    border = np.concatenate((image[0], image[-1], image[:, 0], image[:, -1]))
    if invert if invert is not None else float(np.median(border)) > 0.5:
        image = 1 - image
    return 255 * _resized(_square(image), side)


def sent(text: str) -> BytesIO:
    """The image file that a text has in base64. Its size is checked before its pixels are decoded."""
    from PIL import Image

    try:
        data = base64.b64decode(text, validate=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # also the one about very many pixels
            with Image.open(BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
    except (ValueError, OSError, SyntaxError, Warning, Image.DecompressionBombError) as error:
        raise DataError(f"not an image file in base64 ({type(error).__name__})") from None
    if max(width, height) > SIDE:
        raise DataError(f"an image of {width} x {height} pixels; at most {SIDE} x {SIDE} are read")
    return BytesIO(data)


def _bright(path: Path | BytesIO) -> np.ndarray:
    """The brightness of each pixel, 0 to 1, on a white background."""
    from matplotlib.image import imread

    name = path if isinstance(path, Path) else "image"
    try:
        got = np.asarray(imread(path))
    except (OSError, ValueError, SyntaxError) as error:  # what the readers of the many formats raise
        raise DataError(f"{name}: not an image that can be read ({error})") from error
    if got.ndim not in (2, 3) or 0 in got.shape:
        raise DataError(f"{name}: not a picture: its array has shape {got.shape}")
    scale = float(np.iinfo(got.dtype).max) if got.dtype.kind in "iu" else 1.0
    image = got.astype(np.float64) / scale
    if image.ndim == 2:
        return image
    alpha = image[..., -1] if image.shape[-1] in (2, 4) else np.ones(image.shape[:2])
    colours = image[..., :3] @ GREY if image.shape[-1] >= 3 else image[..., 0]
    bright: np.ndarray = colours * alpha + (1 - alpha)
    return bright


def _square(image: np.ndarray) -> np.ndarray:
    """Pad the shorter sides with background."""
    height, width = image.shape
    most = max(height, width)
    top, left = (most - height) // 2, (most - width) // 2
    return np.pad(image, ((top, most - height - top), (left, most - width - left)))


def _resized(image: np.ndarray, side: int) -> np.ndarray:
    """Resize: area means to shrink, interpolation to enlarge."""
    if len(image) == side:
        return image
    given = torch.from_numpy(image)[None, None]
    mode = "area" if len(image) > side else "bilinear"
    out: np.ndarray = torch.nn.functional.interpolate(given, (side, side), mode=mode)[0, 0].numpy()
    return out
