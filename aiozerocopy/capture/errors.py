"""What can go wrong with a screen."""

from __future__ import annotations


class ScreenError(ConnectionError):
    """There is no such display, or its X server refused something."""


class ScreenLost(ScreenError):
    """The X server has gone.  Frames that are out stay valid."""


class ScreenChanged(ScreenError):
    """The screen has another size now, so what was asked for is no longer there.

    Frames that are out stay valid; open the screen again for the new size.
    """
