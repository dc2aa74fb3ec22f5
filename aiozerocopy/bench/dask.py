"""Arrays between two workers of a Dask cluster: azc://, and Dask's own tcp://.

What the processes of a run do is in `dask_peers`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aiozerocopy._core.extras import optional
from aiozerocopy.bench.dask_peers import Job
from aiozerocopy.bench.feeding import Crew
from aiozerocopy.bench.network import command
from aiozerocopy.bench.racing import Comparison, Headline, Race, Run, Work, WrongBytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.bench.feeding import Lab
    from aiozerocopy.bench.racing import Options

ARRAYS, SIZE = 100, 64_000_000
QUICK_ARRAYS, QUICK_SIZE = 10, 8_000_000


def races(lab: Lab, options: Options) -> list[Race]:
    """Raises: ModuleNotFoundError: there is no Dask."""
    with optional("aiozerocopy bench dask", "dask"):
        import distributed  # noqa: F401
    size = QUICK_SIZE if options.quick else SIZE
    count = QUICK_ARRAYS if options.quick else ARRAYS
    pair = partial(Pair, lab=lab)
    tcp = pair("tcp://")
    ours = [pair("azc://"), pair("azc+unix://")]
    return [
        Race(
            f"arrays of {size // 1_000_000} MB between two workers",
            Work(size, count, warm=4, buffers=2),
            [*ours, tcp],
            [
                Comparison(one.name, [tcp.name], cpu_of_both=True, other="the receiver")
                for one in ours
            ],
            headlines=[
                Headline(
                    one.name,
                    [tcp.name],
                    cpu_of_both=True,
                    work=f"arrays of {size // 1_000_000} MB between Dask workers: "
                    f"{one.name}",
                    against="Dask's tcp://",
                )
                for one in ours
            ],
            brief=16,
        )
    ]


@dataclass(frozen=True)
class Pair:
    """Two workers that speak this protocol, each in a process of its own."""

    name: str
    lab: Lab
    needs: Sequence[str] = ("distributed", "numpy")

    def run(self, work: Work, check: bool) -> Run:
        folder = Path(tempfile.mkdtemp(dir=self.lab.path))
        try:
            os.mkfifo(folder / "address")
            return self._run(work, check, folder)
        finally:
            shutil.rmtree(folder)

    def count_calls(self, work: Work) -> float | None:
        return None

    def _run(self, work: Work, check: bool, folder: Path) -> Run:
        with Crew(self.lab.path / "stderr") as crew:
            for role in ("sender", "sink"):
                job = Job(
                    role,
                    self.name,
                    str(folder),
                    self.lab.pattern(work),
                    work.size,
                    work.warm,
                    work.messages,
                    check,
                )
                crew.start(command("dask_peers", asdict(job)))
            told = crew.finish()
        sink = told["sink"]
        if sink["wrong"]:
            raise WrongBytes(f"{self.name}: {sink['wrong']} arrays came out wrong")
        return Run(sink["seconds"], told["sender"]["cpu"], sink["cpu"], None)
