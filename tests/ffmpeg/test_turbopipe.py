"""Programs for TurboPipe work here, without the faults that they had with TurboPipe."""

import array
import contextlib
import gc
import io
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripts
from links import begun_in_thread

from aiozerocopy import StreamBroken
from aiozerocopy.compat import turbopipe
from aiozerocopy.compat.turbopipe import _DEPTH, _FdQueue

BIG = 3 << 20  # more than a pipe of ours holds


class Pipe:
    """A pipe that this process reads on request."""

    def __init__(self) -> None:
        r, self.w = os.pipe()
        self.reader, self.writer = os.fdopen(r, "rb"), os.fdopen(self.w, "wb", 0)
        self._received = b""
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        self._received = self.reader.read()

    @property
    def is_reading(self) -> bool:
        return self._thread.ident is not None

    def start_reading(self) -> None:
        self._thread.start()

    def all(self) -> bytes:
        """Close the writing end, and return everything that a reader gets."""
        self.writer.close()
        if not self.is_reading:
            self.start_reading()
        self._thread.join(15)
        assert not self._thread.is_alive(), "the reader does not see the end"
        return self._received


@pytest.fixture
def pipes() -> Iterator[Callable[[], Pipe]]:
    made: list[Pipe] = []

    def make() -> Pipe:
        made.append(Pipe())
        return made[-1]

    yield make
    for pipe in made:
        if not pipe.is_reading:
            pipe.reader.close()
    with contextlib.suppress(StreamBroken):
        turbopipe.close()  # raises if a reader has just gone
    for pipe in made:
        if pipe.is_reading:
            pipe.all()
        pipe.reader.close()
        pipe.writer.close()


@pytest.fixture
def pipe(pipes: Callable[[], Pipe]) -> Pipe:
    return pipes()


def noise(n: int = BIG, seed: int = 1) -> bytearray:
    return bytearray(np.random.default_rng(seed).bytes(n))


def waiting(work: Callable[[], object]) -> threading.Thread:
    """Start a thread whose work cannot end yet."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.02)
    assert thread.is_alive()
    return thread


class TestPrograms:
    def test_is_as_new_as_turbopipe(self) -> None:
        theirs = pytest.importorskip("turbopipe")
        assert turbopipe.__version__.split(".")[0] == theirs.__version__.split(".")[0]
        assert isinstance(turbopipe.__about__, type(theirs.__about__))

    @pytest.mark.parametrize("name", ["turbopipe", "aiozerocopy.compat.turbopipe"])
    def test_written_for_turbopipe_2_gives_the_same(self, name: str) -> None:
        pytest.importorskip(name)
        code = f"""
            import importlib, sys
            turbopipe = importlib.import_module({name!r})
            buffers = [bytearray(100_000) for _ in range(3)]
            for number in range(30):
                buffer = buffers[number % 3]
                turbopipe.sync(buffer)
                buffer[:] = bytes([65 + number]) * len(buffer)
                turbopipe.pipe(buffer, 1)
            for buffer in buffers:
                turbopipe.sync(buffer)
                turbopipe.done(buffer)
        """
        said = scripts.run(code)
        assert said == "".join(chr(65 + number) * 100_000 for number in range(30))

    def test_keyword_names_of_both_versions(self, pipe: Pipe) -> None:
        turbopipe.pipe(data=b"two ", file=pipe.w)
        turbopipe.pipe(buffer=b"one", fileno=pipe.writer)  # an object with a fileno()
        turbopipe.sync(data=b"")
        turbopipe.sync(buffer=b"")
        turbopipe.sync()
        turbopipe.done(b"")
        assert pipe.all() == b"two one"

    def test_reader_sees_the_end_as_soon_as_the_fd_is_closed(
        self, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aiozerocopy.compat.turbopipe._IDLE", 3600.0)
        data = noise()
        pipe.start_reading()
        turbopipe.pipe(data, pipe.w)
        turbopipe.sync(data)
        assert pipe.all() == data

    def test_file_opened_anew_is_written_from_its_start(self, tmp_path: Path) -> None:
        path = tmp_path / "frames"
        for content in (b"first", b"next"):
            with path.open("wb") as file:
                turbopipe.pipe(content, file.fileno())
                turbopipe.sync()
            assert path.read_bytes() == content


class TestBuffers:
    def test_cannot_be_resized_while_in_flight(self, pipe: Pipe) -> None:
        data = noise()
        sent = bytes(data)
        turbopipe.pipe(data, pipe.w)
        with pytest.raises(BufferError):
            data.clear()
        assert pipe.reader.read(BIG) == sent
        turbopipe.sync(data)
        data.clear()

    @pytest.mark.parametrize(
        ("data", "error"),
        [
            (np.zeros((4, 4))[:, ::2], BufferError),
            ("text", TypeError),
            (None, TypeError),
            (np.array([object()]), TypeError),
        ],
    )
    def test_unusable_is_refused_at_the_call(
        self, pipe: Pipe, data: object, error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            turbopipe.pipe(data, pipe.w)
        turbopipe.pipe(b"well", pipe.w)
        assert pipe.all() == b"well"

    def test_nothing_is_kept_of_those_that_are_out(self, pipe: Pipe) -> None:
        pipe.start_reading()
        arrays = [np.full(50_000, number, "u1") for number in range(200)]
        alive = [weakref.ref(one) for one in arrays]
        while arrays:
            turbopipe.pipe(arrays.pop(), pipe.w)
        turbopipe.sync()
        gc.collect()
        assert [ref for ref in alive if ref() is not None] == []


class TestReaderDeath:
    @pytest.mark.parametrize("finish", [turbopipe.sync, turbopipe.close])
    def test_is_an_exception_of_the_end(
        self, pipe: Pipe, finish: Callable[[], None]
    ) -> None:
        for _ in range(3):
            turbopipe.pipe(noise(), pipe.w)
        pipe.reader.close()
        with pytest.raises(StreamBroken):
            finish()
        finish()

    def test_each_fd_has_its_own(self, pipes: Callable[[], Pipe]) -> None:
        """One call raises one error; the other is not lost."""
        ends = pipes(), pipes()
        for end, size in zip(ends, (BIG, BIG + 1), strict=True):
            turbopipe.pipe(noise(size), end.w)
            end.reader.close()
        totals = []
        for _ in ends:
            with pytest.raises(StreamBroken) as caught:
                turbopipe.close()
            totals.append(caught.value.total)
        assert sorted(totals) == [BIG, BIG + 1]
        turbopipe.close()

    def test_is_told_though_the_line_has_ended(self, pipe: Pipe) -> None:
        data = noise()
        turbopipe.pipe(data, pipe.w)
        [line] = turbopipe._queues.values()
        pipe.reader.close()
        line.thread.join()
        with pytest.raises(StreamBroken):
            turbopipe.sync(memoryview(data)[:1])


class TestFds:
    def test_number_given_to_another_file_takes_nothing_along(
        self, pipe: Pipe, tmp_path: Path
    ) -> None:
        data = noise()
        turbopipe.pipe(data, pipe.w)
        turbopipe.pipe(data, pipe.w)
        number = pipe.w
        with (tmp_path / "other").open("w+b", buffering=0) as other:
            os.dup2(other.fileno(), number)
            turbopipe.pipe(b"to the other", number)
            pipe.start_reading()
            turbopipe.sync()
            assert Path(other.name).read_bytes() == b"to the other"
        assert pipe.all() == data * 2

    def test_what_cannot_be_written_to_is_refused(self, pipe: Pipe) -> None:
        files: list[Any] = [None, True, "1", pipe.reader]
        for file in files:
            with pytest.raises((TypeError, AttributeError, io.UnsupportedOperation)):
                turbopipe.pipe(b"frame", file)


class TestWaiting:
    def test_ctrl_c_ends_a_sync(self) -> None:
        code = """
            from aiozerocopy.compat import turbopipe
            r, w = os.pipe()
            turbopipe.pipe(bytes(5 << 20), w)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                turbopipe.sync()
            except KeyboardInterrupt:
                print("interrupted")
            os.close(r)
            try:
                turbopipe.close()
            except azc.StreamBroken as error:
                print(error.total)
        """
        assert scripts.run(code) == f"interrupted\n{5 << 20}\n"

    def test_stalled_fd_delays_no_other(self, pipes: Callable[[], Pipe]) -> None:
        """The death of the stalled reader wakes the thread that waits for room."""
        stalled, well = pipes(), pipes()
        data, other = noise(), noise(seed=2)

        def fill() -> None:
            for _ in range(_DEPTH + 2):
                turbopipe.pipe(data, stalled.w)

        end = begun_in_thread(fill)
        well.start_reading()
        for _ in range(5):
            turbopipe.pipe(other, well.w)
            turbopipe.sync(other)
        assert well.all() == other * 5
        stalled.reader.close()
        assert isinstance(end(), StreamBroken)


class TestSync:
    def test_needs_no_other_python_thread(
        self, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_FdQueue, "_watch", lambda _: None)
        data = noise()
        pipe.start_reading()
        for _ in range(_DEPTH + 1):
            turbopipe.pipe(data, pipe.w)
        turbopipe.sync(data)
        turbopipe.close()
        assert pipe.all() == data * (_DEPTH + 1)

    @pytest.mark.parametrize(
        "view",
        [
            pytest.param(memoryview, id="memoryview"),
            pytest.param(lambda data: memoryview(data)[BIG // 2 :], id="slice"),
            pytest.param(lambda data: np.frombuffer(data, "<u4"), id="array"),
            pytest.param(lambda data: data, id="itself"),
        ],
    )
    @pytest.mark.parametrize("piped", [memoryview, lambda data: data])
    def test_waits_for_whatever_shares_a_byte(
        self,
        pipe: Pipe,
        view: Callable[[bytearray], Any],
        piped: Callable[[bytearray], Any],
    ) -> None:
        data = noise()
        turbopipe.pipe(piped(data), pipe.w)
        thread = waiting(lambda: turbopipe.sync(view(data)))
        assert pipe.reader.read(BIG) == data
        thread.join()

    @pytest.mark.parametrize("others", [b"", bytearray(100), array.array("d", [1])])
    def test_does_not_wait_for_others(self, pipe: Pipe, others: Any) -> None:
        data = noise()
        turbopipe.pipe(memoryview(data)[1:], pipe.w)
        turbopipe.sync(others)
        turbopipe.sync(memoryview(data)[:1])
        pipe.reader.close()

    def test_refuses_what_is_no_buffer(self) -> None:
        with pytest.raises(TypeError):
            turbopipe.sync(5)


class TestProcesses:
    def test_forked_child_can_pipe(self) -> None:
        code = """
            import warnings
            from aiozerocopy.compat import turbopipe
            warnings.simplefilter("ignore")  # of fork beside threads
            r, w = os.pipe()
            turbopipe.pipe(b"p" * (2 << 20), w)
            child = os.fork()
            if child == 0:
                turbopipe.sync()
                turbopipe.pipe(b"child", 1)
                turbopipe.sync()
                os._exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            count = 0
            while count < 2 << 20:
                count += len(os.read(r, 1 << 20))
            turbopipe.sync()
            os.close(w)
            print(len(os.read(r, 1)))
        """
        assert scripts.run(code) == "child7\n0\n"

    def test_what_was_piped_arrives_after_the_end_of_the_program(self) -> None:
        code = """
            from aiozerocopy.compat import turbopipe
            for letter in b"abc":
                turbopipe.pipe(bytes([letter]) * (2 << 20), 1)
        """
        said = scripts.run(code)
        assert said == "".join(letter * (2 << 20) for letter in "abc")

    def test_end_of_the_program_gives_up_on_who_does_not_read(self) -> None:
        code = """
            from aiozerocopy.compat import turbopipe
            turbopipe._STALL = 0.5
            r, w = os.pipe()
            turbopipe.pipe(bytes(5 << 20), w)
        """
        status, _, complained = scripts.finish(
            scripts.start(code, warnings="always::ResourceWarning")
        )
        assert status == 0
        assert complained.count("ResourceWarning") == 1
        assert f"{4 << 20:,} bytes were still queued at the end" in complained


# ---- OpenGL ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gl() -> Iterator[Any]:
    """A moderngl context that has rendered, so that its threads have started."""
    moderngl = pytest.importorskip("moderngl")
    try:
        context = moderngl.create_context(standalone=True, backend="egl")
    except Exception as error:  # glcontext raises a plain Exception
        pytest.skip(f"no EGL here: {error}")
    framebuffer = context.simple_framebuffer((64, 64))
    framebuffer.clear(1.0, 0.0, 0.0, 1.0)
    framebuffer.read()
    yield context
    framebuffer.release()
    context.release()


class TestOpenGL:
    @pytest.mark.parametrize(
        "given",
        [
            pytest.param(lambda buffer: buffer, id="buffer"),
            pytest.param(lambda buffer: buffer.mglo, id="mglo"),
            pytest.param(lambda buffer: memoryview(buffer.mglo), id="memoryview"),
            pytest.param(lambda buffer: np.frombuffer(buffer.mglo, "u1"), id="array"),
        ],
    )
    def test_buffer_is_sent_as_it_was(
        self, gl: Any, pipe: Pipe, given: Callable[[Any], Any]
    ) -> None:
        data = noise()
        buffer, other = gl.buffer(data), gl.buffer(b"other")
        turbopipe.pipe(given(buffer), pipe.w)
        buffer.write(bytes(BIG))  # before anything was read
        assert gl.error == "GL_NO_ERROR"
        turbopipe.sync(other)
        thread = waiting(lambda: turbopipe.sync(buffer))
        assert pipe.reader.read(BIG) == data
        thread.join()
        turbopipe.done(buffer.mglo)
        assert buffer.read() == bytes(BIG)
        buffer.release()
        other.release()

    @pytest.mark.parametrize("order", [1, -1])
    def test_no_buffer_stays_mapped_and_none_is_unmapped_for_another(
        self, gl: Any, pipe: Pipe, order: int
    ) -> None:
        buffers = [gl.buffer(noise(seed=seed)) for seed in range(4)]
        sent = b"".join(buffer.read() for buffer in buffers)
        for buffer in buffers:
            turbopipe.pipe(buffer, pipe.w)
        with memoryview(buffers[2].mglo):  # this maps the buffer
            assert pipe.reader.read(len(sent)) == sent
            for buffer in buffers[::order]:
                turbopipe.sync(buffer)
            turbopipe.sync()
        for buffer in buffers:
            buffer.write(bytes(BIG))
            assert buffer.read() == bytes(BIG)
            buffer.release()
        assert gl.error == "GL_NO_ERROR"

    def test_copies_take_only_what_is_in_flight(self, gl: Any, pipe: Pipe) -> None:
        buffer = gl.buffer(noise())
        pipe.start_reading()
        turbopipe.pipe(buffer, pipe.w)
        [line] = turbopipe._queues.values()
        for _ in range(50):
            turbopipe.sync(buffer)
            turbopipe.pipe(buffer, pipe.w)
        assert len(line._spare) + len(line._in_flight) <= 2
        pipe.all()
        buffer.release()

    def test_released_buffer_is_refused(self, gl: Any, pipe: Pipe) -> None:
        buffer = gl.buffer(b"frame")
        buffer.release()
        with pytest.raises((TypeError, BufferError)):
            turbopipe.pipe(buffer, pipe.w)
