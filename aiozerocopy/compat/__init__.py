"""Other libraries' interfaces over this one: change the import, keep the program.

turbopipe   TurboPipe's `pipe`, `sync` and `close`
"""
