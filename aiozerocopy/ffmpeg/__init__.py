"""Frames to and from FFmpeg: `Writer` and `Reader`, each with an FFmpeg of its own.

writer     frames to FFmpeg                    reader     frames from FFmpeg
running    its pipes, errors and end           progress   its reports; is it alive
arguments  what the user says, in its words    formats    how a frame lies in memory
finding    which FFmpeg, and its environment   probing    what it says of a video
decoding   how it is asked for a film          converting pixels of a film's planes
"""

from aiozerocopy.ffmpeg.finding import find_ffmpeg as find_ffmpeg
from aiozerocopy.ffmpeg.formats import Audio as Audio
from aiozerocopy.ffmpeg.formats import Layout as Layout
from aiozerocopy.ffmpeg.formats import layout_of as layout_of
from aiozerocopy.ffmpeg.progress import Status as Status
from aiozerocopy.ffmpeg.reader import Reader as Reader
from aiozerocopy.ffmpeg.running import FFmpegError as FFmpegError
from aiozerocopy.ffmpeg.writer import Writer as Writer
