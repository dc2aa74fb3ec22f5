"""The planes of each pixel format, and the shaders that draw them.

A pass draws one plane (U and V of yuv420p together: both need the same mean of six
pixels).  A texel holds four bytes of a row if the row's length allows, else two or one.
Rows are drawn top down, so nothing needs to be flipped later.

Chroma samples lie where FFmpeg and players expect them by default ("left", as in
MPEG-2, H.264 and HEVC): in the column of the even luma samples, between two rows.  The
weights are 1/4, 1/2, 1/4 across and 1/2, 1/2 down, as in swscale's ``area`` filter.
"""

from __future__ import annotations

from dataclasses import dataclass

PIX_FMTS = ("rgba", "rgb24", "yuv420p", "nv12")
MATRICES = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}  # of red, of blue
RANGES = {"limited": (16, 219, 224), "full": (0, 255, 255)}  # black, luma, chroma
VERTEX_SHADER = """#version 330
void main() {  // one triangle that covers all
    vec2 corner = vec2(gl_VertexID & 1, gl_VertexID >> 1);
    gl_Position = vec4(corner * 4.0 - 1.0, 0.0, 1.0);
}
"""


@dataclass(frozen=True)
class Pass:
    """One draw: the body of its shader, and the texture that it draws to."""

    body: str
    size: tuple[int, int]  # in texels
    components: int  # of a texel, a byte each
    planes: int = 1  # drawn at once
    kept: int = 0  # how many components are read; 0: all

    @property
    def nbytes(self) -> int:
        """The bytes of one plane."""
        width, height = self.size
        return width * height * (self.kept or self.components)


@dataclass(frozen=True)
class Format:
    """A picture's size and pixel format, and the colours of its YUV."""

    size: tuple[int, int]
    pix_fmt: str
    matrix: str = "bt709"
    color_range: str = "limited"

    def __post_init__(self) -> None:
        _one_of("pix_fmt", self.pix_fmt, PIX_FMTS)
        _one_of("matrix", self.matrix, MATRICES)
        _one_of("color_range", self.color_range, RANGES)
        width, height = self.size
        if width < 1 or height < 1:
            raise ValueError(f"a picture of {width}x{height} has no pixels")
        if self.is_yuv and (width % 2 or height % 2):
            raise ValueError(
                f"{self.pix_fmt} needs an even width and height, not {width}x{height}: "
                "read rgba instead, and ffmpeg.Writer pads the film"
            )

    @property
    def is_yuv(self) -> bool:
        return self.pix_fmt in ("yuv420p", "nv12")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the picture as an array; YUV's planes lie below each other."""
        width, height = self.size
        if self.is_yuv:
            return height * 3 // 2, width
        return height, width, self.channels

    @property
    def channels(self) -> int:
        return {"rgba": 4, "rgb24": 3}.get(self.pix_fmt, 1)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes * each.planes for each in self.passes())

    def passes(self) -> tuple[Pass, ...]:
        return getattr(self, f"_{self.pix_fmt}")()  # type: ignore[no-any-return]

    def _rgba(self) -> tuple[Pass, ...]:
        return (Pass("plane0 = pixel(x, y);", self.size, 4),)

    def _rgb24(self) -> tuple[Pass, ...]:
        width, height = self.size
        if width % 4:  # the driver drops alpha
            return (Pass("plane0 = pixel(x, y);", self.size, 4, kept=3),)
        return (Pass("plane0 = four(x * 4, y);", (width * 3 // 4, height), 4),)

    def _yuv420p(self) -> tuple[Pass, ...]:
        width, height = self.size[0] // 2, self.size[1] // 2
        pack = _pack(width)
        chroma = "".join(
            f"{{ vec2 c = chroma(2 * (x * {pack} + {i}), 2 * y);"
            f" plane0[{i}] = c.x; plane1[{i}] = c.y; }}"
            for i in range(pack)
        )
        return (self._luma(), Pass(chroma, (width // pack, height), pack, planes=2))

    def _nv12(self) -> tuple[Pass, ...]:
        width, height = self.size
        pack = _pack(width)  # 2 or 4: U, V or U, V, U, V
        chroma = "plane0.xy = chroma(x * PACK, 2 * y);".replace("PACK", str(pack))
        if pack == 4:
            chroma += "plane0.zw = chroma(x * 4 + 2, 2 * y);"
        return (self._luma(), Pass(chroma, (width // pack, height // 2), pack))

    def _luma(self) -> Pass:
        width, height = self.size
        pack = _pack(width)
        body = "".join(f"plane0[{i}] = luma(x * {pack} + {i}, y);" for i in range(pack))
        return Pass(body, (width // pack, height), pack)

    def fragment_shader(self, draw: Pass) -> str:
        outputs = "".join(
            f"layout(location = {i}) out vec4 plane{i};\n" for i in range(draw.planes)
        )
        return f"{_HEAD}{outputs}{self._constants()}{_FUNCTIONS}{draw.body}\n}}\n"

    def _constants(self) -> str:
        kr, kb = MATRICES[self.matrix]
        kg = 1 - kr - kb
        black, luma, chroma = RANGES[self.color_range]
        u = chroma / 255 / (2 * (1 - kb))
        v = chroma / 255 / (2 * (1 - kr))
        return (
            f"const int LAST = {self.size[0] - 1};\n"
            f"const float BLACK = {black / 255!r}, GREY = {128 / 255!r};\n"
            + _vec3("LUMA", kr * luma / 255, kg * luma / 255, kb * luma / 255)
            + _vec3("U", -kr * u, -kg * u, (1 - kb) * u)
            + _vec3("V", (1 - kr) * v, -kg * v, -kb * v)
        )


_HEAD = "#version 330\nuniform sampler2D source;\n"

# x and y count from the top left corner.  (The shader asks for the height: with a
# constant, which may have become an offset, NVIDIA's driver 580 gave zeros for 2 to 8
# rows.)
_FUNCTIONS = """
vec4 pixel(int x, int y) {
    return texelFetch(source, ivec2(x, textureSize(source, 0).y - 1 - y), 0);
}
vec4 four(int first, int y) {  // four bytes of a row of RGB
    int x = first / 3, of = first % 3;
    vec3 a = pixel(x, y).rgb, b = pixel(min(x + 1, LAST), y).rgb;
    return of == 0 ? vec4(a, b.r) : of == 1 ? vec4(a.gb, b.rg) : vec4(a.b, b);
}
float luma(int x, int y) {
    return BLACK + dot(LUMA, pixel(x, y).rgb);
}
vec2 chroma(int x, int y) {
    float left = x > 0 ? 1.0 : 0.0;  // at the edge swscale leaves it out
    int before = max(x - 1, 0);
    vec3 sum = left * (pixel(before, y).rgb + pixel(before, y + 1).rgb)
             + 2.0 * (pixel(x, y).rgb + pixel(x, y + 1).rgb)
             + pixel(x + 1, y).rgb + pixel(x + 1, y + 1).rgb;
    vec3 mean = sum / (6.0 + 2.0 * left);
    return GREY + vec2(dot(U, mean), dot(V, mean));
}
void main() {
    int x = int(gl_FragCoord.x), y = int(gl_FragCoord.y);
"""


def _vec3(name: str, *values: float) -> str:
    return f"const vec3 {name} = vec3({', '.join(map(repr, values))});\n"


def _pack(row: int) -> int:
    """Return how many bytes of the row a texel holds."""
    return next(n for n in (4, 2, 1) if row % n == 0)


def _one_of(name: str, value: object, allowed: object) -> None:
    names = list(allowed)  # type: ignore[call-overload]
    if value not in names:
        raise ValueError(f"{name} must be one of {', '.join(names)}, not {value!r}")
