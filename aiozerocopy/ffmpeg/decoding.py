"""How FFmpeg is asked for the frames of a film, and which of them we convert.

Films are YUV 4:2:0 as a rule, and programs want RGB, which has twice as many bytes.  So
FFmpeg is first asked for frames as they are, if it can be asked again: what it says of
them decides whether we convert them.  Where we cannot, it is started once more.

As they are they come as YUV4MPEG: a line about the film, and one before each frame.
FFmpeg writes that from the decoder's memory, but copies each frame for rawvideo.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aiozerocopy.frames import PIXELS, Colour, Conversion

if TYPE_CHECKING:
    from aiozerocopy.ffmpeg.probing import Facts
    from aiozerocopy.frames import Matrix
    from aiozerocopy.streams import ReceiveStream

# By FFmpeg's names.
_PLANES = ("yuv420p", "yuvj420p")
_MATRICES: dict[str, Matrix] = {"bt709": "bt709", "bt2020nc": "bt2020"}
_MATRICES |= {"smpte170m": "bt601", "bt470bg": "bt601"}

_RGB = re.compile(r"rgb|bgr|gbr")
_YUV = re.compile(r"yuv|nv\d|p[024]1\d|uyvy|vuy")
_FORMAT_OPTION = re.compile(r"-pix_fmt(:.*)?|-vcodec|-c(odec)?(:v.*)?|-s(:v.*)?")
_FILTER = re.compile(r"-vf|-/?filter|-lavfi")


def guessed_matrix(size: tuple[int, int]) -> Matrix:
    """What players take for the matrix of a film that does not say."""
    width, height = size
    return "bt709" if width >= 1280 or height >= 720 else "bt601"


def conversion_of(facts: Facts, pix_fmt: str) -> Conversion | None:
    """Ours from FFmpeg's frames to the format that is wanted, if that is as good.

    It is not where frames were scaled: from the film's own, FFmpeg gets more colour.
    """
    frames, film = facts.frames, facts.film
    if pix_fmt not in PIXELS or frames.pix_fmt not in _PLANES or film is None:
        return None
    if frames.interlaced or film.size not in (frames.size, frames.size[::-1]):
        return None
    matrix: Matrix | None = guessed_matrix(film.size)
    if frames.matrix is not None:
        matrix = _MATRICES.get(frames.matrix)
    if matrix is None or max(frames.size) > 1 << 15:
        return None
    full_range = frames.full_range or frames.pix_fmt == "yuvj420p"
    colour = Colour(matrix, full_range)
    return Conversion(pix_fmt, "yuv420p", frames.size, colour)


@dataclass(frozen=True)
class Request:
    """How FFmpeg is asked for frames.

    ``as_they_are`` asks for YUV4MPEG, in the format that the frames have.  FFmpeg takes
    a film that does not tell its matrix for BT.601; ``is_bt709`` tells it otherwise.
    """

    pix_fmt: str
    options: list[str]
    as_they_are: bool = False
    is_bt709: bool = False

    def arguments(self) -> list[str]:
        """For the output."""
        if self.as_they_are:
            return [*self.options, "-f", "yuv4mpegpipe"]
        options = _telling_bt709(self.options) if self.is_bt709 else self.options
        return [*options, "-pix_fmt", self.pix_fmt, "-f", "rawvideo"]

    async def first_bytes(self, stream: ReceiveStream) -> bytes:
        """Some of the first frame.  FFmpeg has logged what there is to know by then.

        Raises: as `ReceiveStream.receive`.
        """
        begun = await stream.receive(1)
        if not self.as_they_are:
            return begun
        while not (frames := begun.partition(b"\n")[2]):
            begun += await stream.receive(4096)
        return frames

    def may_be_as_they_are(self) -> bool:
        """Could a conversion of ours be as good?"""
        fixed = any(map(_FORMAT_OPTION.fullmatch, self.options))
        return self.pix_fmt in PIXELS and not fixed

    def better(self, facts: Facts | None) -> Request:
        """How it should have been asked: these frames came, or none (facts is None)."""
        if facts is None:
            return replace(self, as_they_are=False)
        if self.as_they_are and conversion_of(facts, self.pix_fmt):
            return self
        is_bt709 = self._must_tell_bt709(facts)
        return replace(self, as_they_are=False, is_bt709=is_bt709)

    def _must_tell_bt709(self, facts: Facts) -> bool:
        film = facts.film
        return (
            film is not None
            and film.matrix is None
            and _YUV.match(film.pix_fmt) is not None
            and _RGB.search(self.pix_fmt) is not None
            and guessed_matrix(film.size) == "bt709"
            and _telling_bt709(self.options) != self.options
        )


def _telling_bt709(options: list[str]) -> list[str]:
    """The options with one more filter before the others, where we know how."""
    tell = "setparams=colorspace=bt709"
    filters = [at for at, option in enumerate(options) if _FILTER.match(option)]
    if not filters:
        return [*options, "-vf", tell]
    *_, last = filters
    graph = "".join(options[last + 1 : last + 2])
    if options[last] not in ("-vf", "-filter:v") or graph.startswith("["):
        return options
    return [*options[: last + 1], f"{tell},{graph}", *options[last + 2 :]]
