"""A child process below `aiozerocopy.process`.

child   the process itself, and the last bytes that it wrote to stderr
pipes   its stdin and stdout, enlarged
"""
