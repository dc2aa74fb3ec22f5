"""Messages, and the check of received ones.

A message is a header and a payload that both sides know.  Sequences go up by one,
except that cancelled messages may be missing: the header has the number of cancelled
messages right before it.
"""

import oracle

HEADER = oracle.HEADER  # stream, sequence, length, cancelled messages before it; LAST
LAST = 1 << 63  # in the fourth word: the stream ends after this message


class Verifier(oracle.Checker):
    """Checks the bytes of one stream."""

    def __init__(self, stream: int) -> None:
        super().__init__()
        self.stream = stream
        self.messages = self.missing = 0
        self.ended = False  # the last message was received
        self._next = 0  # sequence

    def _feed_header(self, rest: memoryview) -> memoryview:
        assert not self.ended, self._where("more after the last message")
        return super()._feed_header(rest)

    def _judge(self, stream: int, sequence: int, cancelled: int) -> None:
        assert stream == self.stream, self._where(
            f"wrong byte: a header of stream {stream:#x}"
        )
        missing = sequence - self._next
        assert 0 <= missing <= cancelled & ~LAST, self._where(
            f"message {sequence} came where {self._next} was due, and "
            f"{cancelled & ~LAST} were cancelled"
        )
        self.missing += missing
        self.messages += 1
        self._next = sequence + 1
        self.ended = bool(cancelled & LAST)
