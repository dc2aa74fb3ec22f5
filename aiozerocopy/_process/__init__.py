"""A child process, for `aiozerocopy.process`, `ffmpeg` and `web`.

child   the process itself, and the last bytes that it wrote to stderr
pipes   the pipes to and from it; those of stdin and stdout are enlarged
"""
