"""The colours of a film: how they are converted and tagged, and which tags a film has.

A film that is written
    `plan` decides which kind of YUV the RGB becomes, whether we or FFmpeg convert it,
    and the film's tags.

A film that is read
    Films are YUV 4:2:0 as a rule, and programs want RGB, which has twice as many bytes.
    So if the source can be opened twice, FFmpeg is first asked for frames as they are:
    its log tells whether we can convert them.  If not, it is started once more: see
    `Request`.

    Frames as they are come as YUV4MPEG, with a header line and a line before each
    frame.  FFmpeg writes these from the decoder's memory; for rawvideo it copies each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from aiozerocopy.ffmpeg.arguments import with_filters
from aiozerocopy.ffmpeg.codecs import PALETTES, RGB, last_value, named_in
from aiozerocopy.frames import PIXELS, PLANES, Colour, Conversion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.ffmpeg.codecs import Choice
    from aiozerocopy.ffmpeg.facts import Facts
    from aiozerocopy.frames import Matrix
    from aiozerocopy.streams import ReceiveStream

_GREY = ("gray", "mono", "ya", "xyz")
# With one of these options FFmpeg converts, as its filters may need the RGB.  (One
# with a file for a single stream is left out: we cannot add a filter to those in it.)
_FILTERING = (
    *("-vf", "-filter", "-filter:v", "-filter:v:0", "-lavfi"),
    *("-filter_complex", "-filter_complex_script", "-/filter_complex"),
)
# With one of these in a graph, the program sees to the colours itself.
_CONVERTS = re.compile("matrix|colorspace|zscale|setparams|hwupload")
# FFmpeg's formats that take frames in any pixel format.
_RAW = ("null", "rawvideo", "framecrc", "framehash", "framemd5")
# For encoders that take no odd widths and heights, if the picture is 4:2:0.
_PAD = "pad=ceil(iw/2)*2:ceil(ih/2)*2"


@dataclass(frozen=True)
class Plan:
    """How FFmpeg, and perhaps we, turn frames into a film."""

    pix_fmt: str  # of the frames that FFmpeg gets
    before: list[str]  # options before all inputs
    of_input: list[str]
    of_output: list[str]
    conversion: Conversion | None = None  # done by us, before FFmpeg
    is_padded: bool = False


def plan(
    pix_fmt: str,
    size: tuple[int, int],
    choice: Choice,
    options: Sequence[str],
    colour: Colour,
    *,
    ours: bool,
    ends_as_yuv: bool = False,
) -> Plan:
    """Return how frames of this format become what the encoder takes.

    ``options`` are the user's own, which win.  RGB that ends as 4:2:0 is converted by
    us, unless ``ours`` is false or the user has filters, which may need the RGB.
    ``ends_as_yuv``: the encoder's format, which FFmpeg chooses, is YUV.
    """
    target = last_value(options, "-pix_fmt") or choice.pix_fmt
    is_raw = target is None and last_value(options, "-f") in _RAW
    if is_raw or named_in(options) == "copy":  # frames stay as they are
        return Plan(pix_fmt, [], [], list(options))
    graphs = [graph for word, graph in pairwise(options) if word in _FILTERING]
    filtered = bool(graphs)
    if target is not None and target.startswith("yuvj"):  # JPEG's only colours
        colour = replace(colour, matrix="bt601", full_range=True)
    if pix_fmt.startswith("yuvj"):  # older FFmpegs trust the name more than the tag
        pix_fmt = pix_fmt.replace("yuvj", "yuv")
        colour = replace(colour, full_range=True)
    is_rgb = pix_fmt.startswith(RGB)
    is_grey = pix_fmt.startswith(_GREY)
    if is_grey and choice.is_lossless:  # fewer levels would be a loss
        colour = replace(colour, full_range=True)
    conversion = None
    if ours and pix_fmt in PIXELS and target in PLANES and not filtered:
        conversion = Conversion(pix_fmt, target, size, colour)
        pix_fmt = target
    for_yuv = ends_as_yuv if target is None else _is_yuv(target)
    is_padded = choice.codec is not None and not filtered and _needs_even(target, size)
    filters: list[str] = []
    if is_rgb and conversion is None and not (target or "").startswith(RGB):
        if for_yuv and pix_fmt in PALETTES:
            filters.append("format=bgra")
        filters += _filters(colour, for_yuv=for_yuv)
    elif is_grey and for_yuv:
        filters += _filters(colour, for_yuv=True, of_grey=True)
    if filtered and filters and not any(map(_CONVERTS.search, graphs)):
        options = with_filters(options, last=",".join(filters)) or options
    if is_padded:
        filters.append(_PAD)
    if choice.filters:
        filters.append(choice.filters)
    encoder = _encoder(choice, [] if filtered else filters)
    # (newer FFmpegs take the tags from the frames, not from the output's options)
    of_rgb = _meaning(colour) if is_rgb else []
    of_input = _tags(colour) if _is_yuv(pix_fmt) else of_rgb
    of_output = [*encoder, *(_tags(colour) if for_yuv else of_rgb), *options]
    before = list(choice.before)
    return Plan(pix_fmt, before, of_input, of_output, conversion, is_padded)


def _encoder(choice: Choice, filters: Sequence[str]) -> list[str]:
    arguments: list[str] = []
    if filters:
        arguments += ["-vf", ",".join(filters)]
    if choice.codec is not None:
        arguments += ["-c:v", choice.codec, *choice.arguments]
    if choice.pix_fmt is not None and not choice.filters:
        arguments += ["-pix_fmt", choice.pix_fmt]
    return arguments


def _needs_even(pix_fmt: str | None, size: tuple[int, int]) -> bool:
    """Is the format 4:2:0, and the size odd?"""
    subsampled = pix_fmt is not None and ("420" in pix_fmt or pix_fmt == "nv12")
    return subsampled and any(side % 2 for side in size)


def _is_yuv(pix_fmt: str) -> bool:
    return not pix_fmt.startswith((*RGB, *_GREY))


# ---- tags and filters -----------------------------------------------------------

_MATRIX_TAG = {"bt709": "bt709", "bt601": "smpte170m", "bt2020": "bt2020nc"}


def _meaning(colour: Colour) -> list[str]:
    """Return the tags that RGB has; YUV has these and more: see `_tags`."""
    primaries, transfer = colour.primaries, colour.transfer
    return ["-color_primaries", primaries, "-color_trc", transfer]


def _tags(colour: Colour) -> list[str]:
    """Return the tags of an input or output of YUV."""
    levels = "pc" if colour.full_range else "tv"
    matrix = _MATRIX_TAG[colour.matrix]
    return [*_meaning(colour), "-colorspace", matrix, "-color_range", levels]


def _filters(colour: Colour, *, for_yuv: bool, of_grey: bool = False) -> list[str]:
    """Return FFmpeg's filters that convert RGB or grey for an encoder that wants YUV.

    The filters tag the frames too, since some encoders write the frames' tags.  Without
    accurate_rnd grey comes back up to 3 levels darker.
    """
    levels = "pc" if colour.full_range else "tv"
    told = f"color_primaries={colour.primaries}:color_trc={colour.transfer}"
    if for_yuv:
        told += f":colorspace={_MATRIX_TAG[colour.matrix]}:range={levels}"
    how = ":flags=bicubic+accurate_rnd" if of_grey else ""
    return [
        f"scale=out_color_matrix={colour.matrix}:out_range={levels}{how}",
        f"setparams={told}",
    ]


# ---- a film that is read ---------------------------------------------------------

# By FFmpeg's names.
_OUR_PLANES = ("yuv420p", "yuvj420p")
_MATRICES: dict[str, Matrix] = {"bt709": "bt709", "bt2020nc": "bt2020"}
_MATRICES |= {"smpte170m": "bt601", "bt470bg": "bt601"}

_RGB = re.compile(r"rgb|bgr|gbr")
_YUV = re.compile(r"yuv|nv\d|p[024]1\d|uyvy|vuy")
_FORMAT_OPTION = re.compile(r"-pix_fmt(:.*)?|-vcodec|-c(odec)?(:v.*)?|-s(:v.*)?")


def guessed_matrix(size: tuple[int, int]) -> Matrix:
    """Return the matrix that players assume for a film without a tag."""
    width, height = size
    return "bt709" if width >= 1280 or height >= 720 else "bt601"


def conversion_of(facts: Facts, pix_fmt: str) -> Conversion | None:
    """Return our conversion to the wanted format, if it is as good as FFmpeg's.

    For scaled frames it is not: FFmpeg scales the film's own YUV, with more colour.
    """
    frames, film = facts.frames, facts.film
    if pix_fmt not in PIXELS or frames.pix_fmt not in _OUR_PLANES or film is None:
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

    ``as_they_are`` asks for YUV4MPEG, in the format that the frames have.  FFmpeg
    assumes BT.601 for a film without a tag, unless ``is_bt709`` is set.
    """

    pix_fmt: str
    options: list[str]
    as_they_are: bool = False
    is_bt709: bool = False

    def arguments(self) -> list[str]:
        if self.as_they_are:
            return [*self.options, "-f", "yuv4mpegpipe"]
        options = _telling_bt709(self.options) if self.is_bt709 else self.options
        return [*options, "-pix_fmt", self.pix_fmt, "-f", "rawvideo"]

    async def first_bytes(self, stream: ReceiveStream) -> bytes:
        """Return some of the first frame.  FFmpeg has logged the facts by then.

        Raises: as `ReceiveStream.receive`.
        """
        begun = await stream.receive(1)
        if not self.as_they_are:
            return begun
        while not (frames := begun.partition(b"\n")[2]):
            begun += await stream.receive(4096)
        return frames

    def may_be_as_they_are(self) -> bool:
        """Could our own conversion be as good as FFmpeg's?"""
        fixed = any(map(_FORMAT_OPTION.fullmatch, self.options))
        return self.pix_fmt in PIXELS and not fixed

    def better(self, facts: Facts | None) -> Request:
        """Return a request that suits the facts of the frames better, or an equal one.

        ``facts`` is None if no frame has come.
        """
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
    """Return the options with a filter that tags BT.709, if one can be added."""
    return with_filters(options, first="setparams=colorspace=bt709") or options
