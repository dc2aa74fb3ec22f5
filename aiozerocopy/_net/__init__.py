"""Connections: how one is made, taken, and let in.

A module imports those above it, never those below.

    frame_header      the bytes before each frame: docs/pages/wire-format.md
    foreign_streams   other people's streams (TLS, anyio's own) as one of ours
    connecting        connect_tcp, connect_unix; which address of a host answers
    listening         sockets that listen
    admission         who may come in: tokens, and how many at a time
    block             background tasks of an ``async with`` block
    serving           serve_tcp, serve_unix
"""
