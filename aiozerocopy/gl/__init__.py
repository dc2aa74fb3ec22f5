"""Rendered frames from the GPU to memory, without stalling the event loop.

A `Readback` has ``depth`` pixel-pack buffers.  Each is in one of these states:

=========  =====================================================  ==================
state      what it means                                          goes on when
=========  =====================================================  ==================
idle       no frame or picture uses it                            ``submit``
reading    the GPU fills it, or its picture was not taken yet     ``next``, ``read``
leased     a `Picture`, or a view or array made of it, is alive   all are gone
=========  =====================================================  ==================

Frames go only into idle buffers, so a picture that is still being sent is never
overwritten, even if it was released; a forgotten picture is collected.

**Closed while a picture lives**: idle and reading buffers are deleted; a leased buffer
stays mapped and readable, and is deleted when its last view is gone (in the context's
thread; a view that goes in another thread leaves it until the context ends).  A picture
keeps its context from being collected.

**Nothing blocks.**  Fences are polled with a timeout of zero, with ``anyio.sleep``
between.  A buffer is mapped once for good (GL 4.4 or ARB_buffer_storage), or else it is
mapped after its fence and copied out in pieces, with a checkpoint after each.  A
software renderer (llvmpipe) does not queue reads: they wait until all is drawn.  With
such a renderer ``put`` and ``read`` first poll a fence.

All calls must come from the thread that made the `Readback`.

_readback   the ring of buffers            _picture    one buffer, and its picture
_transfer   a framebuffer into a buffer    _planes     the shaders for YUV
_functions  OpenGL, by ctypes
"""

from aiozerocopy._core import extras

with extras.optional("aiozerocopy.gl", "gl"):
    from aiozerocopy.gl._functions import ContextLost as ContextLost
    from aiozerocopy.gl._functions import GLError as GLError
    from aiozerocopy.gl._picture import Picture as Picture
    from aiozerocopy.gl._readback import Readback as Readback
