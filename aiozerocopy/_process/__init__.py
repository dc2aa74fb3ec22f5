"""The child process that `aiozerocopy.process` controls.

child   the process itself, and the last bytes that it wrote to stderr
pipes   its stdin and stdout, enlarged
"""
