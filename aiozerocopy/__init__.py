"""Memory to pipes, sockets and FFmpeg, without a copy in user space.

When ``await stream.send(buffer)`` returns, the bytes are out, in order, and the buffer
is yours.
"""

from aiozerocopy._bound import Stats as Stats
from aiozerocopy._errors import IncompleteReceive as IncompleteReceive
from aiozerocopy._errors import StreamBroken as StreamBroken
from aiozerocopy._errors import StreamClosed as StreamClosed
from aiozerocopy.streams import ReceiveStream as ReceiveStream
from aiozerocopy.streams import SendStream as SendStream
from aiozerocopy.streams import Stream as Stream
from aiozerocopy.streams import Ticket as Ticket
