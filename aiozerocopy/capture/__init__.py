"""The screen of an X server as frames: from the server's memory into a pool's slots.

    async with azc.capture.X11Screen(":0") as screen:
        async for picture in screen.frames(rate=30):
            with picture:
                await film.send(picture)

In shared memory a picture is copied once, by the X server.  We speak the X protocol
ourselves, since the libraries for it block while they wait for a reply, or cannot pass
fds.

screen      X11Screen                   slots     memory that the X server fills
connection  requests and replies        x11       the messages of the protocol
display     where the X server is       damage    which parts have changed
"""

from aiozerocopy.capture.connection import Monitor as Monitor
from aiozerocopy.capture.connection import monitors as monitors
from aiozerocopy.capture.screen import X11Screen as X11Screen
from aiozerocopy.capture.slots import Screenshot as Screenshot
from aiozerocopy.capture.x11 import Rectangle as Rectangle
from aiozerocopy.capture.x11 import ScreenChanged as ScreenChanged
from aiozerocopy.capture.x11 import ScreenError as ScreenError
from aiozerocopy.capture.x11 import ScreenLost as ScreenLost
