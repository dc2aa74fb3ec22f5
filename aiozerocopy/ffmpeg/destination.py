"""Where a film goes: beside its place until it is finished, and then into it.

The states of a film
    unfinished   it is written to ``film.unfinished-1a2b3c.mp4``, beside ``film.mp4``,
                 which is not touched.  An MP4 is written in fragments, so that it plays
                 even after a full disk or a killed program
    kept         it has taken the place of ``film.mp4``; before that, an MP4 was given
                 its usual form, with the index in front
    broken off   FFmpeg failed, or had no time to end it.  The part that plays takes the
                 film's place if there is no older film, and else stays where it is
    too late     no older film may be replaced, but one has come: it stays where it is
    discarded    no frame of it plays, FFmpeg did not start, or the Writer was aborted
                 or never closed: it was deleted
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from aiozerocopy.ffmpeg.binary import ask

if TYPE_CHECKING:
    from collections.abc import Sequence

# By the end of a film's name: the formats that are a single file.
_FRAGMENTED = ("mp4", "m4v", "mov")
_SINGLE = {*_FRAGMENTED, "mkv", "webm", "ts", "m2ts", "flv", "avi", "gif", "apng"}
_SINGLE |= {"3g2", "3gp", "asf", "dv", "f4v", "m2v", "mpeg", "mpg", "mts", "mxf"}
_SINGLE |= {"nut", "ogg", "ogv", "vob", "wmv", "h264", "hevc", "ivf", "y4m"}
FRAGMENTS = "+frag_keyframe+delay_moov+default_base_moof"  # for -movflags
# The options of FFmpeg's MP4 muxer, and others for the index.  A second pass that only
# copies would not obey them, and it would destroy an encrypted film.
_OF_THE_INDEX = re.compile(
    "-(f$|brand|empty_hdlr|encryption_|frag|iods_|ism_|min_frag|mo[ov]|rtpflags|skip_"
    "|use_|video_track_|write_|strict|timecode|map_(chapters|metadata))|timecode="
)
# The container for each scheme of a URL.
_SCHEMES = {"rtmp": "flv", "rtmps": "flv", "srt": "mpegts", "udp": "mpegts"}
_SCHEMES |= {"tcp": "mpegts", "rtsp": "rtsp"}
_FRAMES = re.compile(r"^frame=(\d+)", re.MULTILINE)


class Destination:
    """The place of one film in a folder."""

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool) -> None:
        """Create the unfinished file now, so that an error of the folder comes early.

        Raises:
            FileExistsError: the film exists, and is not to be replaced.
            OSError: no file can be created there.
        """
        self.path: Path = Path(os.path.realpath(path))
        self._overwrite = overwrite
        if not overwrite and self.path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        if not (folder := self.path.parent).is_dir():
            what = "there is no such folder: make it first"
            raise FileNotFoundError(errno.ENOENT, what, str(folder))
        self.unfinished: Path = self._beside("unfinished")
        self.film: Path | None = None  # where the film is, once it has ended
        try:
            io.FileIO(self.unfinished, "x").close()
        except OSError as error:
            what, where = "no file can be made there: choose another folder", folder
            if error.errno == errno.ENAMETOOLONG:
                what = "the name is too long: leave 18 bytes for '.unfinished-1a2b3c'"
                where = self.path
            raise OSError(error.errno, what, str(where)) from error

    def _beside(self, state: str) -> Path:
        token = secrets.token_hex(3)
        return self.path.with_name(
            f"{self.path.stem}.{state}-{token}{self.path.suffix}"
        )

    def _flags(self, others: Sequence[str]) -> str:
        """Return our -movflags; none if the user gave some.

        With other options for the index FFmpeg writes the film's usual form at once.
        """
        is_mp4 = self.path.suffix[1:].lower() in _FRAGMENTED
        if not is_mp4 or "-movflags" in others:
            return ""
        return "+faststart" if any(map(_OF_THE_INDEX.match, others)) else FRAGMENTS

    def arguments(self, others: Sequence[str]) -> list[str]:
        flags = self._flags(others)
        return [*(["-movflags", flags] if flags else []), f"file:{self.unfinished}"]

    async def keep(self, ffmpeg: str, others: Sequence[str]) -> None:
        """Put the finished film in its place; as fragments, if cancelled.

        Raises: FileExistsError: a film has come, and is not to be replaced.
        """
        try:
            if self._flags(others) == FRAGMENTS:
                await self._put_index_in_front(ffmpeg)
        finally:
            self._take_its_place(overwrite=self._overwrite)

    async def keep_what_plays(self, ffmpeg: str) -> int:
        """Keep a film that was broken off, if it plays.  Return how many frames do."""
        frames = await self._frames(ffmpeg)
        if not frames:
            self.discard()
        else:
            with contextlib.suppress(FileExistsError):  # an older film is complete
                self._take_its_place(overwrite=False)
        return frames

    def discard(self) -> None:
        """Delete the film, unless it was kept.  Idempotent."""
        if self.film is None:
            self.unfinished.unlink(missing_ok=True)

    async def _put_index_in_front(self, ffmpeg: str) -> None:
        usual = self._beside("indexed")
        try:
            # -copyts: else the sound's priming begins at 0, and the pictures later.
            status, _, _ = await ask(
                *(ffmpeg, "-loglevel", "error", "-y"),
                *("-copyts", "-i", f"file:{self.unfinished}"),
                # -map_metadata: else FFmpeg leaves out the creation_time.
                *("-map", "0", "-map_metadata", "0", "-c", "copy"),
                *("-movflags", "+faststart"),
                f"file:{usual}",
                patience=None,
            )
            if status == 0:
                usual.replace(self.unfinished)
        finally:  # if the disk had no room for it, the fragments stay, which play too
            usual.unlink(missing_ok=True)

    async def _frames(self, ffmpeg: str) -> int:
        _, said, _ = await ask(
            *(ffmpeg, "-loglevel", "quiet", "-fflags", "+discardcorrupt"),
            *("-i", f"file:{self.unfinished}"),
            *("-map", "0:v:0", "-c", "copy", "-progress", "pipe:1", "-f", "null", "-"),
            patience=None,
        )
        return max(map(int, _FRAMES.findall(said)), default=0)

    def _take_its_place(self, *, overwrite: bool) -> None:
        self.film = self.unfinished  # if it must stay there
        if not overwrite and self._links():
            self.unfinished.unlink()
        else:
            with contextlib.suppress(FileNotFoundError):
                self.unfinished.chmod(stat.S_IMODE(self.path.stat().st_mode))
            self.unfinished.replace(self.path)
        self.film = self.path

    def _links(self) -> bool:
        """Give a film that replaces none its name too; False: no links here."""
        try:
            os.link(self.unfinished, self.path)
        except OSError as error:
            if error.errno == errno.EEXIST or self.path.exists():
                what = f"a film has come meanwhile; this one is {self.unfinished.name}"
                raise FileExistsError(errno.EEXIST, what, str(self.path)) from error
            return False
        return True


def destination_of(
    output: object, options: Sequence[str], *, overwrite: bool
) -> Destination | None:
    """Return the destination of a single file; None for any other output.

    Raises:
        ValueError: the name of the file does not say its format.
        IsADirectoryError: it is a folder; others as `Destination`.
    """
    if not isinstance(output, (str, os.PathLike)):
        return None
    path = os.fspath(output)
    if not isinstance(path, str):
        return None
    if isinstance(output, str):
        scheme, colon, rest = path.partition(":")
        if colon and scheme == "file":
            path = rest
        elif colon and scheme.isalnum() and not os.path.exists(path):
            return None  # a URL, or a protocol such as "pipe:"
    if os.path.isdir(path):
        what = f"{os.strerror(errno.EISDIR)}: add the name of a film"
        raise IsADirectoryError(errno.EISDIR, what, path)
    _, dot, suffix = os.path.basename(path).rpartition(".")
    if not (dot and suffix) and "-f" not in options:
        raise ValueError(
            f"{path!r} has no suffix, which tells FFmpeg the format: name a film such "
            "as film.mp4, or put -f into the options"
        )
    if os.path.splitext(path)[1][1:].lower() not in _SINGLE:
        return None
    if "%" in path and "-f" in options:  # such as "segment", with a number for %d
        return None
    if os.path.exists(path) and not os.path.isfile(path):
        return None
    return Destination(path, overwrite=overwrite)


# ---- containers, by the names of films -----------------------------------------------


def container_of(output: str | os.PathLike[str]) -> str:
    """Return the container of a known URL, such as "flv", else the end of the name."""
    name = os.fspath(output)
    scheme, found, _ = name.partition("://")
    if found and scheme in _SCHEMES:
        return _SCHEMES[scheme]
    return os.path.splitext(name)[1][1:].lower()


def muxer_of(place: str, arguments: Sequence[str]) -> list[str]:
    """Return FFmpeg's option for the container of a known URL."""
    scheme, found, _ = place.partition("://")
    if not found or scheme not in _SCHEMES or "-f" in arguments:
        return []
    return ["-f", _SCHEMES[scheme]]
