"""Frames to and from FFmpeg: `Writer`, `Encoder`, `Reader`, each with its own FFmpeg.

writer        frames to FFmpeg                 reader    frames from FFmpeg
encoder       frames to FFmpeg, bytes from it  run       its pipes, errors and end
subscriptions these bytes to many clients      status    what it reports
cutter        where a client may begin: mp4_fragments, ts_packets, mkv_clusters
arguments     its arguments, from ours         layouts   how a frame lies in memory
codecs        our words in theirs; which work  binary    which FFmpeg; what it answers
colours       who converts, what a film says   converters RGB and YUV, on the way
destination   where a film goes                facts     what its log tells of a film
"""

from aiozerocopy.ffmpeg.binary import find_ffmpeg as find_ffmpeg
from aiozerocopy.ffmpeg.encoder import Encoder as Encoder
from aiozerocopy.ffmpeg.layouts import Audio as Audio
from aiozerocopy.ffmpeg.layouts import Layout as Layout
from aiozerocopy.ffmpeg.layouts import layout_of as layout_of
from aiozerocopy.ffmpeg.reader import Reader as Reader
from aiozerocopy.ffmpeg.run import FFmpegError as FFmpegError
from aiozerocopy.ffmpeg.status import Status as Status
from aiozerocopy.ffmpeg.subscriptions import Clients as Clients
from aiozerocopy.ffmpeg.subscriptions import Subscription as Subscription
from aiozerocopy.ffmpeg.writer import Writer as Writer
