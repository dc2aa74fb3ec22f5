"""How 1, 10, 100 and 1,000 at once share a process: threads, memory, and how old a
message is when it has arrived.  ``python -m crowds``

viewers   clients of one `Broadcast`, with our own frames over TCP
web       the same over WebSockets, from `web.serve`
pipes     pipes that are too small for a message, each with a task that sends
"""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "support"))
