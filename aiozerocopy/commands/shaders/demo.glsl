// The demo's scene: waves that bend the picture, and rings that follow them.  Like any
// such fragment shader, it has a mainImage, which draws one pixel.

// A smooth wave of period 1, much cheaper than a sine where the GPU is a CPU.
vec3 wave(vec3 x) {
    x = abs(2.0 * fract(x) - 1.0);
    return x * x * (3.0 - 2.0 * x);
}

void mainImage(out vec4 color, in vec2 pixel) {
    vec2 p = (2.0 * pixel - iResolution.xy) / iResolution.y;
    vec3 bend = wave(vec3(0.31 * p.yx + vec2(0.13, 0.21) * iTime, 0.07 * iTime));
    vec2 q = p + 0.9 * (bend.xy - 0.5);
    bend = wave(vec3(0.57 * q.yx - vec2(0.11, 0.17) * iTime, 0.0));
    q += 0.5 * (bend.xy - 0.5);
    float rings = dot(q, q);
    vec3 tint = wave(vec3(0.02, 0.33, 0.58) + 0.22 * q.x + 0.13 * q.y + 0.05 * iTime);
    vec3 light = wave(vec3(1.1 * rings - 0.45 * iTime));
    color = vec4(tint * (0.3 + 0.7 * light / (1.0 + 0.3 * rings)), 1.0);
}
