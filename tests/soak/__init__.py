"""A soak: hundreds of streams at once over every kind of link, for minutes or hours.

Two processes send, one on asyncio and one on uvloop; two others receive and compare
every byte, one with plain reads and one with our streams.  Streams end at random, from
either side, and others take their places.  ``python -m soak --seconds 20``

messages    what is sent, and who checks what has arrived
ways        a stream, and how its other end gets to the receiver
sender      the process that sends
receiver    the process that receives
samples     memory, fds, threads and beats each second, which must not grow
"""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "support"))
