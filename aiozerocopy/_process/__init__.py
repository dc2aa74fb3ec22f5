"""A child process below `aiozerocopy.process`.

child   the process itself, and the end of what it wrote to stderr
pipes   its stdin and stdout, enlarged
"""
