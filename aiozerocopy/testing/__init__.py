"""For your own tests: the contract in one call, and streams in memory.

`check_stream` tries the contract's clauses on anybody's stream.  `memory_pair` makes
two connected streams without fds, threads or a kernel: a program that is tested over
them meets full buffers, short reads and broken streams where its test says so.
"""

from aiozerocopy.testing._check import check_stream as check_stream
from aiozerocopy.testing._memory import MemoryEnds as MemoryEnds
from aiozerocopy.testing._memory import MemoryStream as MemoryStream
from aiozerocopy.testing._memory import memory_pair as memory_pair
