"""Frames to and from FFmpeg: `Writer`, `Encoder`, `Reader`, each with its own FFmpeg.

writer        frames to FFmpeg                 reader    frames from FFmpeg
encoder       a film's bytes, to many clients  run       FFmpeg's pipes, reports, end
cutters       where a client may join
arguments     FFmpeg's arguments, from ours    layouts   how a frame lies in memory
codecs        encoders, quality and presets    binary    which FFmpeg; what it answers
colours       who converts; a film's tags      converters RGB to YUV, and back
destination   where a film goes                facts     what the log says of a film
"""

from aiozerocopy.ffmpeg.binary import find_ffmpeg as find_ffmpeg
from aiozerocopy.ffmpeg.encoder import Clients as Clients
from aiozerocopy.ffmpeg.encoder import Encoder as Encoder
from aiozerocopy.ffmpeg.encoder import Subscription as Subscription
from aiozerocopy.ffmpeg.layouts import Audio as Audio
from aiozerocopy.ffmpeg.layouts import Layout as Layout
from aiozerocopy.ffmpeg.layouts import layout_of as layout_of
from aiozerocopy.ffmpeg.reader import Reader as Reader
from aiozerocopy.ffmpeg.run import FFmpegError as FFmpegError
from aiozerocopy.ffmpeg.run import Status as Status
from aiozerocopy.ffmpeg.writer import Writer as Writer
