"""Shared by the tests of FFmpeg."""

import numpy as np
import pytest
from ffmpegs import ffmpeg, pretend

__all__ = ["ffmpeg", "pretend"]


@pytest.fixture
def dice() -> np.random.Generator:
    return np.random.default_rng(5)
