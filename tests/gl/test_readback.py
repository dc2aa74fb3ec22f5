"""Readback: exact pixels, FFmpeg's colours, lifetimes, and no waiting."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread
import gl_scene as scene
import moderngl
import numpy as np
import pytest
import scripts
from interruption import Interruption, Lines, hit_each_line
from links import attempt, attempting, cancelled_at, cut_short, others_wait, until
from numpy.typing import NDArray

import aiozerocopy as azc
from aiozerocopy import gl
from aiozerocopy.gl import _picture, _readback, _transfer
from aiozerocopy.gl._planes import Format
from aiozerocopy.gl._transfer import Transfer

SIZE = (64, 48)


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    """A context for all tests, whose threads and files exist before each test."""
    try:
        context = scene.new_context()
    except Exception as error:
        pytest.skip(f"no OpenGL through EGL here: {error}")
    with scene.released(context):
        yield context


def read_now(
    context: Any, framebuffer: Any, pix_fmt: str = "rgba", **options: Any
) -> NDArray[np.uint8]:
    """Read a framebuffer, and return a copy of the picture."""

    async def read() -> Any:
        with gl.Readback(context, framebuffer.size, pix_fmt, **options) as readback:
            with await readback.read(framebuffer) as picture:
                return picture.array.copy()

    array: NDArray[np.uint8] = anyio.run(read)
    assert context.error == "GL_NO_ERROR"
    return array


@pytest.fixture(params=["turned by the driver", "drawn"])
def any_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "drawn":
        monkeypatch.setattr(Transfer, "_is_direct", lambda *_: False)


# ---- pixels -------------------------------------------------------------------------


@pytest.mark.usefixtures("any_way")
@pytest.mark.parametrize("mapping", ["persistent", "copy"])
@pytest.mark.parametrize("size", [(64, 48), (35, 7), (1, 1), (1024, 601)])
def test_rgb_is_exact_and_top_down(
    context: Any, size: tuple[int, int], mapping: str
) -> None:
    picture = scene.noise(*size)
    with scene.painted(context, picture) as framebuffer:
        rgba = read_now(context, framebuffer, "rgba", mapping=mapping)
        rgb = read_now(context, framebuffer, "rgb24", mapping=mapping)
        from_below = framebuffer.read(alignment=1)  # flip=True is for this
    assert (
        rgb.tobytes()
        == np.frombuffer(from_below, "u1").reshape(rgb.shape)[::-1].tobytes()
    )
    assert np.array_equal(rgba, picture)
    assert np.array_equal(rgb, picture[..., :3])


@pytest.mark.usefixtures("any_way")
@pytest.mark.parametrize("samples", [0, 4])
def test_a_renderbuffer(context: Any, samples: int) -> None:
    target = context.renderbuffer(SIZE, 4, samples=samples)
    framebuffer = context.framebuffer([target])
    with scene.released(framebuffer, target):
        framebuffer.clear(0.2, 0.4, 0.6, 0.8)
        framebuffer.clear(1, 1, 1, 1, viewport=(0, 40, 64, 8))  # the top rows
        array = read_now(context, framebuffer)
    assert (array[:8] == 255).all()
    assert (array[8:] == [51, 102, 153, 204]).all()


@pytest.mark.usefixtures("any_way")
def test_a_texture_that_others_would_see_differently(context: Any) -> None:
    """Missing mipmaps or a swizzle do not change what is read."""
    picture = scene.noise(*SIZE)
    with scene.painted(context, picture) as framebuffer:
        texture = framebuffer.color_attachments[0]
        texture.filter = moderngl.LINEAR_MIPMAP_LINEAR, moderngl.LINEAR
        texture.swizzle = "BGR1"
        assert np.array_equal(read_now(context, framebuffer), picture)


@pytest.mark.usefixtures("any_way")
def test_srgb_gives_the_bytes_as_stored(context: Any) -> None:
    srgb8_alpha8 = 0x8C43
    picture = scene.noise(*SIZE)
    texture = context.texture(
        SIZE, 4, picture[::-1].tobytes(), internal_format=srgb8_alpha8
    )
    framebuffer = context.framebuffer([texture])
    with scene.released(framebuffer, texture):
        assert np.array_equal(read_now(context, framebuffer), picture)


@pytest.mark.usefixtures("any_way")
def test_floats_are_clamped(context: Any) -> None:
    texture = context.texture(SIZE, 4, dtype="f4")
    framebuffer = context.framebuffer([texture])
    with scene.released(framebuffer, texture):
        framebuffer.clear(-1.0, 2.0, 0.2, 1.0)
        array = read_now(context, framebuffer)
        yuv = read_now(context, framebuffer, "yuv420p")
    assert (array == [0, 255, 51, 255]).all()
    assert (yuv[:48] == round(16 + 219 * (0.7152 + 0.0722 * 0.2))).all()


def test_state_of_moderngl_is_kept(context: Any) -> None:
    """The state does not change the picture, either."""
    picture = scene.smooth(*SIZE)
    pixels = context.texture((8, 8), 4)
    mine = context.framebuffer([pixels])
    with scene.painted(context, picture) as framebuffer, scene.released(mine, pixels):
        mine.use()
        mine.viewport, mine.scissor = (1, 2, 3, 4), (2, 3, 4, 5)
        framebuffer.scissor = (0, 0, 5, 5)
        framebuffer.color_mask = False, True, False, True
        context.enable_only(moderngl.BLEND | moderngl.CULL_FACE)
        context.blend_func = moderngl.ZERO, moderngl.ZERO
        context.wireframe = True
        try:
            drawn = read_now(context, framebuffer, "nv12")
            direct = read_now(context, framebuffer, "rgba")
            bound, wireframe = context.fbo, context.wireframe
            context.clear(1, 1, 1, 1)
        finally:
            context.wireframe = False
            context.enable_only(moderngl.NOTHING)
            context.blend_func = moderngl.DEFAULT_BLENDING
        assert bound is mine
        assert wireframe
        assert (mine.viewport, mine.scissor) == ((1, 2, 3, 4), (2, 3, 4, 5))
        assert np.count_nonzero(np.frombuffer(mine.read(components=1), "u1")) == 20
        mine.scissor = None
        mine.use()
    assert np.array_equal(direct, picture)
    with scene.painted(context, picture) as framebuffer:
        assert np.array_equal(drawn, read_now(context, framebuffer, "nv12"))


def test_a_framebuffer_released_while_bound(context: Any) -> None:
    """moderngl binds it again, in vain; later frames must not report that error."""
    pixels = context.texture((8, 8), 4)
    mine = context.framebuffer([pixels])
    mine.use()
    mine.release()
    pixels.release()
    picture = scene.smooth(*SIZE)
    with scene.painted(context, picture) as framebuffer:
        assert np.array_equal(read_now(context, framebuffer), picture)
        assert read_now(context, framebuffer, "nv12").shape == (72, 64)


# ---- colours, against FFmpeg -------------------------------------------------------

# The area filter weighs chroma at the left as we do (see _planes); the other flags make
# swscale calculate exactly, and use all pixels for chroma.
EXACT = "area+accurate_rnd+full_chroma_int+full_chroma_inp+bitexact"


def by_ffmpeg(picture: Format, frames: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    width, height = picture.size
    scale = (
        f"scale=out_color_matrix={picture.matrix}:out_range={picture.color_range}"
        f":out_h_chr_pos=0:out_v_chr_pos=128:flags={EXACT},format={picture.pix_fmt}"
    )
    command = ["ffmpeg", "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgba"]
    command += ["-s", f"{width}x{height}", "-i", "-", "-vf", scale]
    command += ["-f", "rawvideo", "-pix_fmt", picture.pix_fmt, "-"]
    pixels = b"".join(frame.tobytes() for frame in frames)
    result = subprocess.run(command, input=pixels, capture_output=True, check=True)
    converted = np.frombuffer(result.stdout, np.uint8)
    return converted.reshape(len(frames), *picture.shape)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="no FFmpeg to compare with")
@pytest.mark.parametrize("size", [(64, 48), (62, 34), (70, 30)])
@pytest.mark.parametrize("color_range", ["limited", "full"])
@pytest.mark.parametrize("matrix", ["bt601", "bt709"])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "nv12"])
def test_yuv_is_as_ffmpegs_within_one(
    context: Any, pix_fmt: str, matrix: str, color_range: str, size: tuple[int, int]
) -> None:
    options = {"matrix": matrix, "color_range": color_range}
    frames = [scene.smooth(*size), scene.noise(*size)]
    expected = by_ffmpeg(Format(size, pix_fmt, **options), frames)
    for frame, reference in zip(frames, expected, strict=True):
        with scene.painted(context, frame) as framebuffer:
            ours = read_now(context, framebuffer, pix_fmt, **options)
        assert np.abs(ours.astype(int) - reference).max() <= 1


# ---- an old OpenGL ------------------------------------------------------------------

OLD = {
    "MESA_GL_VERSION_OVERRIDE": "3.3",
    "MESA_EXTENSION_OVERRIDE": (
        "-GL_ARB_buffer_storage -GL_MESA_pack_invert -GL_KHR_robustness"
    ),
}
ON_OLD = """
import gl_scene as scene
from aiozerocopy import gl
context = scene.new_context()
picture = scene.noise(66, 34)
async def main():
    for pix_fmt in ("rgba", "rgb24", "yuv420p", "nv12"):
        with scene.painted(context, picture) as framebuffer:
            with gl.Readback(context, (66, 34), pix_fmt) as readback:
                with await readback.read(framebuffer) as taken:
                    if pix_fmt[:3] == "rgb":
                        expected = picture[..., : taken.shape[2]].tobytes()
                        assert bytes(taken.view) == expected, pix_fmt
        print(pix_fmt, readback.mapping, context.version_code, context.error)
run(main)
"""


@pytest.mark.usefixtures("context")
def test_gl_3_3_without_extensions() -> None:
    settings = [f"{name}={value}" for name, value in OLD.items()]
    assert scripts.run(ON_OLD, under=["env", *settings]).splitlines() == [
        f"{pix_fmt} copy 330 GL_NO_ERROR"
        for pix_fmt in ("rgba", "rgb24", "yuv420p", "nv12")
    ]


# ---- frames and pictures ------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("mapping", ["persistent", "copy"])
async def test_every_frame_reaches_a_pipe_in_order(context: Any, mapping: str) -> None:
    count = 300
    numbers = []
    target = context.renderbuffer((16, 16), 4)
    framebuffer = context.framebuffer([target])

    async def render(readback: gl.Readback) -> None:
        for number in range(count):
            await readback.wait_room()
            framebuffer.clear(number % 256 / 255, number // 256 / 255, 0.0, 1.0)
            readback.submit(framebuffer)

    async def send(readback: gl.Readback, writer: azc.SendStream) -> None:
        async with writer:
            for _ in range(count):
                with await readback.next() as picture:
                    await writer.send(picture)

    with scene.released(framebuffer, target):
        reader, writer = azc.pipe()
        with gl.Readback(context, (16, 16), mapping=mapping) as readback:
            async with reader, anyio.create_task_group() as tasks:
                tasks.start_soon(render, readback)
                tasks.start_soon(send, readback, writer)
                memory = bytearray(readback.nbytes)
                for _ in range(count):
                    await reader.receive_exactly(memory)
                    numbers.append(int(memory[0]) + 256 * int(memory[1]))
    assert numbers == list(range(count))
    assert context.error == "GL_NO_ERROR"


class Ring:
    """A readback on an OpenGL that is as slow as the test wants."""

    def __init__(self, get_gl: Callable[[], scene.SlowGL], mapping: str) -> None:
        context = scene.slow_context()
        self.readback = gl.Readback(context, SIZE, mapping=mapping)
        self.gl = get_gl()
        self.framebuffer = scene.slow_framebuffer(context, SIZE)

    def submit(self, count: int = 1) -> None:
        for _ in range(count):
            self.readback.submit(self.framebuffer)

    async def next_number(self) -> int:
        with await self.readback.next() as picture:
            return picture.view[0]


@pytest.fixture(params=["persistent", "copy"])
def ring(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ring]:
    ring = Ring(scene.install(monkeypatch, _readback), request.param)
    with ring.readback:
        yield ring


@pytest.mark.anyio
class TestRing:
    async def test_three_go_in_before_the_first_comes_out(self, ring: Ring) -> None:
        ring.submit(3)
        assert ring.readback.free == 0
        with pytest.raises(anyio.WouldBlock):
            ring.submit()
        ring.gl.finish()
        assert [await ring.next_number() for _ in range(3)] == [1, 2, 3]
        assert ring.readback.free == ring.readback.depth == 3

    async def test_tasks_get_their_pictures_in_turn(self, ring: Ring) -> None:
        async with anyio.create_task_group() as tasks:
            waiting = []
            for _ in range(3):
                waiting.append(attempt(tasks, ring.next_number))
                await others_wait()
            ring.submit(3)
            ring.gl.finish()
        assert [each.result for each in waiting] == [1, 2, 3]

    @pytest.mark.parametrize("n", range(1, 7))
    async def test_cancelled_at_each_wait(
        self, ring: Ring, n: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This includes the waits between the pieces of a copy, here three."""
        monkeypatch.setattr(_picture, "PIECE", 4096)
        ring.submit(2)
        ring.gl.finish()
        _, picture = await cancelled_at(ring.readback.next(), n)
        if picture:
            assert picture.view[0] == 1
            picture.release()
        else:
            assert await ring.next_number() == 1
        assert await ring.next_number() == 2
        assert ring.readback.free == 3

    async def test_close_between_two_pieces(
        self, ring: Ring, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_picture, "PIECE", 1)  # thousands of turns
        before = ring.gl.maps
        ring.submit()
        ring.gl.finish()
        async with attempting(ring.readback.next) as copying:
            await until(lambda: ring.gl.maps > before or copying.done)
            ring.readback.close()
        if ring.readback.mapping == "copy":
            assert isinstance(copying.error, anyio.ClosedResourceError)
            assert sorted(ring.gl.deleted) == [1, 2, 3]
        else:
            copying.result.release()

    @pytest.mark.parametrize("call", ["next", "submit", "put", "read"])
    async def test_an_interrupted_call_loses_nothing(
        self, ring: Ring, call: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read(framebuffer: Any) -> None:
            scene.SlowGL.read(ring.gl, framebuffer)
            ring.gl.finish()

        monkeypatch.setattr(ring.gl, "read", read)
        readback, begin = ring.readback, getattr(ring.readback, call)
        args = () if call == "next" else (ring.framebuffer,)

        async def numbers_of(lines: Lines) -> list[int]:
            with lines:
                come = begin(*args)
                picture = come if call == "submit" else await come
            if picture is None:
                return []
            with picture:
                return [picture.view[0]]

        async def play(lines: Lines) -> list[str]:
            numbers: list[int] = []
            if call == "next":
                ring.submit(2)
            with contextlib.suppress(Interruption):
                numbers = await numbers_of(lines)
            while readback._submitted:
                numbers.append(await ring.next_number())
            if call != "next":
                ring.submit(2)
                numbers = [await ring.next_number(), await ring.next_number()]
            latest = ring.gl.frames
            if numbers != [(latest - 1) % 256, latest % 256]:
                return [f"pictures {numbers} of {latest} frames"]
            return [] if readback.free == 3 else [f"{readback.free} slots are free"]

        await hit_each_line(play, ("gl",))

    async def test_a_cancelled_read_gives_its_buffer_back(self, ring: Ring) -> None:
        async with cut_short(ring.readback.read, ring.framebuffer):
            await until(lambda: ring.gl.polls >= 2)
            assert ring.readback.free == 2
        assert ring.readback.free == 3

    async def test_read_gets_its_own_frame(self, ring: Ring) -> None:
        ring.submit()
        ring.gl.finish()
        async with attempting(ring.readback.read, ring.framebuffer) as reading:
            await until(lambda: ring.gl.frames == 2)
            ring.gl.finish()
        with reading.result as picture:
            assert picture.view[0] == 2
        assert await ring.next_number() == 1

    async def test_read_waits_for_room(self, ring: Ring) -> None:
        ring.submit(3)
        ring.gl.finish()
        first = await ring.readback.next()
        async with attempting(ring.readback.read, ring.framebuffer) as reading:
            await others_wait()
            assert ring.gl.frames == 3
            await anyio.to_thread.run_sync(first.release)  # any thread may release it
            await until(lambda: ring.gl.frames == 4)
            ring.gl.finish()
        reading.result.release()

    @pytest.mark.parametrize("call", ["put", "read"])
    async def test_drawing_in_software_holds_nobody_up(
        self, ring: Ring, call: str
    ) -> None:
        """No frame is read before it is drawn, which `SlowGL` checks."""
        ring.gl.draw()
        begin = getattr(ring.readback, call)
        async with attempting(begin, ring.framebuffer) as putting:
            await until(lambda: ring.gl.polls >= 3 or putting.done)
            assert ring.gl.frames == 0
            ring.gl.finish()
            await until(lambda: ring.gl.frames == 1 or putting.done)
            ring.gl.finish()
            if call == "put":
                assert await ring.next_number() == 1
        assert call == "put" or putting.result.view[0] == 1
        assert len(ring.gl.dropped) == len(ring.gl.fences) == 2

    async def test_a_gpu_is_not_waited_for_by_put(self, ring: Ring) -> None:
        ring.submit(2)
        await ring.readback.put(ring.framebuffer)
        assert ring.gl.frames == 3
        assert ring.gl.polls == 0

    @pytest.mark.parametrize("call", ["put", "read"])
    async def test_cancelled_while_it_is_drawn(self, ring: Ring, call: str) -> None:
        ring.gl.draw()
        async with cut_short(getattr(ring.readback, call), ring.framebuffer):
            await until(lambda: ring.gl.polls >= 2)
        assert ring.readback.free == 3
        assert ring.gl.frames == 0
        assert len(ring.gl.dropped) == len(ring.gl.fences) == 1
        ring.gl.finish()
        await ring.readback.put(ring.framebuffer)
        ring.gl.finish()
        assert await ring.next_number() == 1

    async def test_a_gl_error_ends_the_call_alone(self, ring: Ring) -> None:
        ring.gl.fault = gl.GLError("GL_OUT_OF_MEMORY")
        with pytest.raises(gl.GLError, match="OUT_OF_MEMORY"):
            ring.submit()
        assert ring.readback.free == 3
        ring.submit()
        ring.gl.finish()
        assert await ring.next_number() == 1

    async def test_a_fence_that_fails(
        self, ring: Ring, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ring.submit()
        wait_failed = 0x911D
        monkeypatch.setattr(ring.gl, "ClientWaitSync", lambda *_: wait_failed)
        with pytest.raises(gl.GLError, match="fence"):
            await ring.readback.next()
        ring.gl.fault = gl.ContextLost("gone")
        with pytest.raises(gl.ContextLost):
            await ring.readback.next()

        def no_fence(*_: int) -> int:
            ring.gl.fault = gl.ContextLost("gone")
            return 0

        monkeypatch.setattr(ring.gl, "FenceSync", no_fence)
        with pytest.raises(gl.ContextLost):
            ring.submit()

    async def test_close_ends_all_waits(self, ring: Ring) -> None:
        ring.submit(3)
        async with anyio.create_task_group() as tasks:
            waiting = [
                attempt(tasks, ring.readback.next),
                attempt(tasks, ring.readback.next),
                attempt(tasks, ring.readback.read, ring.framebuffer),
                attempt(tasks, ring.readback.put, ring.framebuffer),
                attempt(tasks, ring.readback.wait_room),
            ]
            await until(lambda: ring.gl.polls >= 2)
            ring.readback.close()
        for each in waiting:
            assert isinstance(each.error, anyio.ClosedResourceError)
        assert sorted(ring.gl.deleted) == [1, 2, 3]


# ---- owners of memory ---------------------------------------------------------------


@pytest.mark.anyio
class TestLease:
    async def take(self, ring: Ring) -> gl.Picture:
        ring.submit()
        ring.gl.finish()
        return await ring.readback.next()

    async def test_release_ends_the_view(self, ring: Ring) -> None:
        picture = await self.take(ring)
        view = picture.view
        assert view.readonly
        picture.release()
        picture.release()
        assert ring.readback.free == 3
        for use in (lambda: view[0], lambda: picture.view, lambda: picture.array):
            with pytest.raises(ValueError, match="released"):
                use()
        assert "released" in repr(picture)

    @pytest.mark.parametrize("borrow", [lambda p: p.array[:4], lambda p: p.view[:4]])
    async def test_what_is_made_of_it_holds_the_buffer(
        self, ring: Ring, borrow: Callable[[gl.Picture], Any]
    ) -> None:
        picture = await self.take(ring)
        borrowed = borrow(picture)
        picture.release()
        assert ring.readback.free == 2
        ring.submit(2)  # the other two buffers
        with pytest.raises(anyio.WouldBlock):
            ring.submit()
        assert memoryview(borrowed).cast("B")[0] == 1
        del borrowed
        assert ring.readback.free == 1

    async def test_close_leaves_living_pictures_alone(self, ring: Ring) -> None:
        picture = await self.take(ring)
        array = picture.array
        ring.readback.close()
        ring.readback.close()
        assert sorted(ring.gl.deleted) == [2, 3]
        assert array.ravel()[0] == 1
        picture.release()
        assert sorted(ring.gl.deleted) == [2, 3]
        del array
        assert sorted(ring.gl.deleted) == [1, 2, 3]

    async def test_the_last_view_may_end_in_another_thread(self, ring: Ring) -> None:
        picture = await self.take(ring)
        ring.readback.close()
        await anyio.to_thread.run_sync(picture.release)
        assert sorted(ring.gl.deleted) == [2, 3]  # the last ends with the context


# ---- threads and contexts -----------------------------------------------------------


def test_another_thread_is_refused(ring: Ring) -> None:
    refused = []

    def use() -> None:
        for call in (ring.submit, ring.readback.close):
            with pytest.raises(RuntimeError, match="thread"):
                call()
            refused.append(call)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(refused) == 2


def test_two_contexts(context: Any) -> None:
    """A readback works with any current context, and restores it."""
    other = scene.new_context()
    pictures = scene.noise(*SIZE), scene.smooth(*SIZE)

    async def main() -> None:
        with scene.painted(other, pictures[1]) as theirs:
            context.__enter__()
            with scene.painted(context, pictures[0]) as ours:
                with (
                    gl.Readback(other, SIZE, "rgba") as second,
                    gl.Readback(context, SIZE, "rgba") as first,
                    gl.Readback(other, SIZE, "auto"),  # (it draws to measure)
                ):
                    for readback, framebuffer, picture in (
                        (first, ours, pictures[0]),
                        (second, theirs, pictures[1]),
                    ):
                        who_is_current = first._gl._switch._ask_current
                        before = who_is_current()
                        with await readback.read(framebuffer) as taken:
                            assert np.array_equal(taken.array, picture)
                        assert who_is_current() == before
            other.__enter__()

    try:
        with scene.released(other):
            anyio.run(main)
    finally:
        context.__enter__()
    assert context.error == "GL_NO_ERROR"


def test_a_released_context_is_lost(context: Any) -> None:
    lost = scene.new_context()
    texture = lost.texture(SIZE, 4)
    framebuffer = lost.framebuffer([texture])
    readback = gl.Readback(lost, SIZE)
    lost.release()
    context.__enter__()
    with pytest.raises(gl.ContextLost, match="released"):
        readback.submit(framebuffer)
    readback.close()
    with pytest.raises(gl.ContextLost, match="released"):
        gl.Readback(lost, SIZE)


@pytest.mark.parametrize(
    ("name", "code"), [("GetGraphicsResetStatus", 0x8253), ("GetError", 0x507)]
)
def test_a_lost_context_is_reported(context: Any, name: str, code: int) -> None:
    with scene.painted(context, scene.noise(*SIZE)) as framebuffer:
        with gl.Readback(context, SIZE) as readback:
            setattr(readback._gl, name, lambda: code)
            with pytest.raises(gl.ContextLost, match="lost while"):
                readback.submit(framebuffer)


def test_real_gl_error_is_named(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiozerocopy.gl._functions.UNSIGNED_BYTE", 1)
    with scene.painted(context, scene.noise(*SIZE)) as framebuffer:
        with gl.Readback(context, SIZE) as readback:
            with pytest.raises(gl.GLError, match="GL_INVALID_ENUM"):
                readback.submit(framebuffer)
    assert context.error == "GL_NO_ERROR"


def test_errors_of_others_are_not_ours(context: Any) -> None:
    with scene.painted(context, scene.noise(*SIZE)) as framebuffer:
        with gl.Readback(context, SIZE) as readback:
            readback._gl.BindBuffer(1, 1)
            readback.submit(framebuffer)


# ---- invalid arguments, and the rest ------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "not a NoneType"),
        ({"size": (0, 4)}, "no pixels"),
        ({"pix_fmt": "bgra"}, "pix_fmt must be one of .*, not 'bgra'"),
        ({"size": (63, 48), "pix_fmt": "yuv420p"}, "even width and height, not 63x48"),
        ({"size": (64, 47), "pix_fmt": "nv12"}, "even width and height, not 64x47"),
        ({"depth": 0}, "depth must be at least 1"),
        ({"matrix": "bt2020"}, "bt601, bt709"),
        ({"color_range": "tv"}, "limited, full"),
        ({"mapping": "none"}, "persistent or copy, not 'none'"),
        ({"colour": 1}, "unexpected keyword"),
    ],
)
def test_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        gl.Readback(None, **{"size": SIZE, **options})


def test_persistent_where_there_is_none(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene.SlowGL, "has_storage", False)
    with pytest.raises(ValueError, match=r"GL 4\.4"):
        gl.Readback(scene.slow_context(), SIZE, mapping="persistent")
    with gl.Readback(scene.slow_context(), SIZE) as readback:
        assert readback.mapping == "copy"


def test_unfit_framebuffers(context: Any) -> None:
    integers = context.texture(SIZE, 4, dtype="u1")
    grey = context.texture(SIZE, 1)
    depth = context.depth_texture(SIZE)
    small = context.texture((32, 48), 4)
    gone = context.framebuffer([grey])
    gone.release()
    unfit = {
        "dtype u1": context.framebuffer([integers]),
        "not 1": context.framebuffer([grey]),
        "no colour attachment": context.framebuffer([], depth),
        "32x48, and the readback 64x48": context.framebuffer([small]),
        "released": gone,
    }
    with scene.released(integers, grey, depth, small, *unfit.values()):
        with gl.Readback(context, SIZE) as readback:
            for message, framebuffer in unfit.items():
                with pytest.raises(ValueError, match=message):
                    readback.submit(framebuffer)
            with pytest.raises(TypeError, match="not a Texture"):
                readback.submit(grey)
    with pytest.raises(anyio.ClosedResourceError):
        readback.submit(grey)


def test_a_framebuffer_of_another_context(ring: Ring) -> None:
    framebuffer = scene.slow_framebuffer(scene.slow_context(), SIZE)
    with pytest.raises(ValueError, match="another context"):
        ring.readback.submit(framebuffer)


def test_auto_measures(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with gl.Readback(context, SIZE, "auto") as readback:
        assert readback.pix_fmt in ("rgba", "yuv420p")
        is_software = "llvmpipe" in context.info["GL_RENDERER"]
        assert readback._gl.draws_in_software or not is_software
    with gl.Readback(context, (63, 48), "auto") as readback:
        assert readback.pix_fmt == "rgba"
    for yuv, chosen in ((0.005, "rgba"), (0.0011, "yuv420p")):  # rgba takes 0.001
        seconds = {"rgba": 0.001, "yuv420p": yuv}
        monkeypatch.setattr(
            _transfer,
            "_rounds",
            lambda *given, seconds=seconds: [1, seconds[given[2].pix_fmt], 1],
        )
        with gl.Readback(context, (640, 480), "auto") as readback:
            assert readback.pix_fmt == chosen


def test_what_it_says_of_itself(ring: Ring) -> None:
    readback = ring.readback
    assert (readback.size, readback.shape) == (SIZE, (48, 64, 4))
    assert readback.nbytes == 64 * 48 * 4
    assert repr(readback) == f"<Readback rgba 64x48, {readback.mapping}, 3 of 3 free>"
    assert readback.ffmpeg_options[-2:] == ["-video_size", "64x48"]
    readback.close()
    assert "closed" in repr(readback)
