"""A film of H.264 to RGB frames, each in memory where a program can look at it.

The clock runs from the end of the warm-up frames to the last frame.  The film is made
once, of pictures that are known.  In the round that checks, each frame must be the one
that was drawn, as near as x264 and the conversions get.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench.encode import FPS, in_frames
from aiozerocopy.bench.feeding import Crew, run_program
from aiozerocopy.bench.ffmpeg import FrameRace
from aiozerocopy.bench.racing import Comparison, Headline, Run, WrongBytes
from aiozerocopy.bench.readers import Job
from aiozerocopy.bench.video import CHECKED, Video, amount, ffmpegs, waves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from aiozerocopy.bench.feeding import Lab
    from aiozerocopy.bench.racing import Options, Race, Work

SIZES = ((1920, 1080), (3840, 2160))
TINY = ((160, 90),)
BUFFERS = 8
NEAR = 3.0  # of 255: how much a frame may differ on average from what was drawn
BT709 = "bt709"


def races(lab: Lab, options: Options) -> Iterator[Race]:
    sizes = TINY if options.quick else SIZES
    if options.size is not None:
        sizes = (options.size,)
    headlines: Sequence[Headline] = HEADLINES
    for version, ffmpeg in ffmpegs(options).items():
        for width, height in sizes:
            video = Video(ffmpeg, (width, height))
            yield FrameRace(
                f"a film of {width}x{height}, FFmpeg {version}",
                amount(options, video, 2_000_000_000, BUFFERS),
                [FilmReader(name, lab, video, **more) for name, more in GIVEN.items()],
                [Comparison(OURS, [rival], cpu_of_both=True) for rival in RIVALS],
                told=in_frames,
                brief=120,
                headlines=headlines,
            )
            headlines = ()  # (the summary makes do with the first)


@dataclass(frozen=True)
class FilmReader:
    """A process that reads a film."""

    name: str
    lab: Lab
    video: Video
    way: str
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: Sequence[str] = ("numpy",)

    def run(self, work: Work, check: bool) -> Run:
        n = min(work.messages, CHECKED) if check else work.messages
        job = Job(
            way=self.way,
            film=str(self._film(work)),
            size=self.video.size,
            warm=work.warm,
            frames=n,
            ffmpeg=self.video.ffmpeg,
            options=dict(self.options),
            pictures=str(self._pictures(work)) if check else "",
        )
        program = [sys.executable, "-m", "aiozerocopy.bench.readers"]
        with Crew(self.lab.path / "stderr") as crew:
            crew.start([*program, json.dumps(asdict(job))])
            told = crew.finish()["reader"]
        if told["received"] != work.warm + n:
            raise WrongBytes(f"{self.name}: {told['received']} frames came")
        if told["off"] > NEAR:
            raise WrongBytes(f"{self.name}: a frame is off by {told['off']:.2f}")
        # (here FFmpeg is the sender)
        return Run(told["seconds"], told["ffmpeg_cpu"], told["cpu"], None)

    def count_calls(self, work: Work) -> float | None:
        """One of these has the decoder in the reader."""
        return None

    def _pictures(self, work: Work) -> Path:
        return waves(self.lab, self.video.size, work.buffers)

    def _film(self, work: Work) -> Path:
        """The pictures again and again, as many as are read at most."""
        (width, height), n = self.video.size, work.warm + work.messages
        path = self.lab.path / f"film-{width}x{height}-{n}.mkv"
        if path.exists():
            return path
        tags = ("-colorspace", "-color_primaries", "-color_trc")
        command = [self.video.ffmpeg, "-v", "error", "-y", "-stream_loop", "-1"]
        command += [*self.video.input, "-r", str(FPS), "-i", str(self._pictures(work))]
        command += ["-frames:v", str(n), "-vf", f"scale=out_color_matrix={BT709}"]
        command += ["-c:v", "libx264", "-preset", "veryfast", "-crf", "18"]
        command += ["-pix_fmt", "yuv420p", *(it for tag in tags for it in (tag, BT709))]
        run_program([*command, str(path)])
        return path


OURS = "Reader"
IMAGEIO = "imageio-ffmpeg"
PYAV = "PyAV in this process"
LOOP = "a readinto loop"
GIVEN: Mapping[str, Mapping[str, Any]] = {
    OURS: {"way": "reader", "options": {"convert": "auto"}},
    f"{OURS}, convert='ffmpeg'": {"way": "reader", "options": {"convert": "ffmpeg"}},
    LOOP: {"way": "readinto"},
    IMAGEIO: {"way": "imageio_ffmpeg", "needs": ("numpy", "imageio_ffmpeg")},
    PYAV: {"way": "pyav", "needs": ("numpy", "av")},
}
RIVALS = (LOOP, IMAGEIO, PYAV, f"{OURS}, convert='ffmpeg'")
HEADLINES = [
    Headline(
        OURS,
        [rival],
        cpu_of_both=True,
        work="1080p film to RGB frames: ffmpeg.Reader",
        against=against,
        unit="frames",
    )
    for rival, against in {
        LOOP: "FFmpeg's pipe, readinto",
        IMAGEIO: IMAGEIO,
        PYAV: "PyAV",
    }.items()
]
