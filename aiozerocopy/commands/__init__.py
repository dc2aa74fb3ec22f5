"""The commands of `aiozerocopy COMMAND`: one module each, started by `cli`.

capture, demo, doctor, render, serve, view: the commands

scenes      shaders to be rendered          film        a scene into a video
probes      the findings of doctor          progress    a bar for long work
options     options of the command line     ending      exit status and last line
"""
