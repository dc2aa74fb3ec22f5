"""Rendered frames from the GPU to memory, without stalling the event loop.

A `Readback` has ``depth`` pixel-pack buffers.  Each is in one of these states:

=========  =======================================================  ===============
state      what it means                                            goes on when
=========  =======================================================  ===============
idle       nobody needs it                                          ``submit``
reading    the GPU fills it; its fence has not been passed          the fence passed
leased     a `Picture`, or a view or array made of it, is alive     all are gone
=========  =======================================================  ===============

Only an idle buffer is submitted to, so a picture that is being sent is never
overwritten, even if it was released, and a forgotten one is collected.

**Closed while a picture lives**: idle and reading buffers are deleted; a leased one
stays mapped and readable, and is deleted when its last view is gone (in the thread of
the context; in another thread it is left to the end of the context).  A picture keeps
its context from being collected.

**Not waited for.**  Fences are polled with a timeout of zero, with ``anyio.sleep``
between; a buffer is mapped once for good (GL 4.4 or ARB_buffer_storage), else after its
fence, and then copied out in pieces with a checkpoint after each.  A software renderer
(llvmpipe) is different in that a read waits until all is drawn: ``put`` and ``read``
wait for that before, as for a fence.

All calls must come from the thread that made the `Readback`.

_readback   the ring of buffers            _picture    one buffer, and its picture
_transfer   from a framebuffer into one    _planes     the shaders for YUV
_functions  OpenGL, by ctypes
"""

from aiozerocopy._core import extras

with extras.optional("aiozerocopy.gl", "gl"):
    from aiozerocopy.gl._functions import ContextLost as ContextLost
    from aiozerocopy.gl._functions import GLError as GLError
    from aiozerocopy.gl._picture import Picture as Picture
    from aiozerocopy.gl._readback import Readback as Readback
