"""For your own tests: the contract in one call, and streams in memory.

`check_stream` tries the contract's clauses on any stream.  `memory_pair` makes two
connected streams without fds, threads or a kernel: with these a test decides where its
program meets full buffers, short reads and broken streams.
"""

from aiozerocopy.testing._check import check_stream as check_stream
from aiozerocopy.testing._memory import MemoryEnds as MemoryEnds
from aiozerocopy.testing._memory import MemoryStream as MemoryStream
from aiozerocopy.testing._memory import memory_pair as memory_pair
