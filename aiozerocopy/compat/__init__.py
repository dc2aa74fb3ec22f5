"""Other libraries' interfaces over this one: change the import, keep the program.

turbopipe   TurboPipe's `pipe`, `sync` and `close`; _fd_queue is what each fd has
"""
