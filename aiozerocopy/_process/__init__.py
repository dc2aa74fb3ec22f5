"""A child process below `aiozerocopy.process`.

last_words   the end of what it wrote to stderr
child        the process itself: started, waited for, killed
pipes        its stdin and stdout, enlarged
"""
