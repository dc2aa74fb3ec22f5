"""The measurement of crowds runs, and says what it has found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import figures
import pytest
from links import linux_only
from proof.table import TESTS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [linux_only, pytest.mark.slow, pytest.mark.timeout(120)]


def test_each_kind_has_its_curves(tmp_path: Path) -> None:
    path = tmp_path / "figures"
    command = [sys.executable, "-m", "crowds", "--most", "10", "--seconds", "1"]
    environment = os.environ | {figures.VARIABLE: str(path)}
    subprocess.run(command, cwd=TESTS, env=environment, check=True)
    lines = list(map(json.loads, path.read_text().splitlines()))
    curves = {line["what"]: line["value"] for line in lines if line["kind"] == "curve"}
    for kind in ("viewers", "web", "pipes"):
        threads = curves[f"Crowds, threads: {kind}"]
        assert [size for size, _ in threads] == [1, 10]
        ages = curves[f"Crowds, age of a message: {kind}, median"]
        assert all(0 < age < 60_000 for _, age in ages)
