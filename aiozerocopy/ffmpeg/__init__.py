"""Frames to and from FFmpeg: `Writer`, `Encoder`, `Reader`, each with its own FFmpeg.

writer     frames to FFmpeg                    reader     frames from FFmpeg
encoder    frames to FFmpeg, bytes from it     clients    those bytes to many
pieces     where a client may begin: mp4_fragments, ts_packets, mkv_clusters
running    its pipes, errors and end           progress   its reports; does it hang?
arguments  its arguments, from ours, checked   formats    how a frame lies in memory
finding    which FFmpeg, and its environment   probing    what it tells of a video
plan       how frames become a film            decoding   how it is asked for a film
encoders   our words in theirs                 available  which of them this one has
colours    what it is told of them             converting RGB and YUV, on the way
asking     one that is asked, and ends         destination  where a film goes
"""

from aiozerocopy.ffmpeg.clients import Clients as Clients
from aiozerocopy.ffmpeg.clients import Subscription as Subscription
from aiozerocopy.ffmpeg.encoder import Encoder as Encoder
from aiozerocopy.ffmpeg.finding import find_ffmpeg as find_ffmpeg
from aiozerocopy.ffmpeg.formats import Audio as Audio
from aiozerocopy.ffmpeg.formats import Layout as Layout
from aiozerocopy.ffmpeg.formats import layout_of as layout_of
from aiozerocopy.ffmpeg.progress import Status as Status
from aiozerocopy.ffmpeg.reader import Reader as Reader
from aiozerocopy.ffmpeg.running import FFmpegError as FFmpegError
from aiozerocopy.ffmpeg.writer import Writer as Writer
