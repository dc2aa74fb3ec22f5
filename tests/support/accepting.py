"""A listening socket whose accept fails, as it does when there are no fds."""

import os
import socket
from typing import Any


class Failing:
    """A socket whose first calls of accept fail with these errors."""

    def __init__(self, sock: socket.socket, *errors: int) -> None:
        self._sock = sock
        self._errors = list(errors)

    def accept(self) -> Any:
        if self._errors:
            code = self._errors.pop(0)
            raise OSError(code, os.strerror(code))
        return self._sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)
