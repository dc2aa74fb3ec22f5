"""The interfaces of other libraries: change the import, keep the program.

turbopipe   TurboPipe's `pipe`, `sync` and `close`
"""
