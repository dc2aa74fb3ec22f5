"""Connections: how one is made, taken, let in, and tried again.

A module imports those above it, never those below.

    backoff           how long to wait before the next try
    frame_header      the bytes before each frame: docs/pages/wire-format.md
    foreign_streams   other people's streams (TLS, anyio's own) as one of ours
    happy_eyeballs    the first of a host's addresses that answers
    connecting        connect_tcp, connect_unix
    listening         sockets that listen
    admission         who may come in: tokens, and how many at a time
    block             background tasks of an ``async with`` block
    serving           serve_tcp, serve_unix
"""
