"""What `aiozerocopy COMMAND` runs: one module a command, started by `cli`.

capture, demo, doctor, render, serve, view: the commands

scenes      shaders to be rendered          film        a scene into a video
probes      what doctor asks                progress    a bar on long work
options     what the command line can say   ending      how a command ends
"""
