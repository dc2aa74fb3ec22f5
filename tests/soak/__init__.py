"""A soak: hundreds of streams at once, over every kind of link, for minutes or hours.

Two processes send, one on asyncio and one on uvloop.  Two others receive and compare
every byte, one with plain reads and one with our streams.  Streams end at random, from
either side, and new ones replace them.

    python -m soak --seconds 20

messages    messages, and the check of received ones
ways        how to open a stream, and the fd that goes to the receiver
sender      the process that sends
receiver    the process that receives
samples     memory, fds, threads and delays in each second, and what has grown
"""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "support"))
