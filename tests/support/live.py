"""A broadcast that keeps no frame: newcomers wait for the next, and slots come back."""

from aiozerocopy.broadcast import Broadcast, Encode, Published
from aiozerocopy.broadcast.encodings import Encoding


class Live(Broadcast):
    def _remember(self, published: Published) -> None:
        super()._remember(published)
        self._last = None

    def _encoding(self, encode: Encode) -> Encoding:
        encoding = super()._encoding(encode)
        encoding._keep = lambda message: message  # type: ignore[method-assign]
        return encoding
