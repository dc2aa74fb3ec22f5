"""What tests of FFmpeg share."""

from ffmpegs import ffmpeg, pretend

__all__ = ["ffmpeg", "pretend"]
