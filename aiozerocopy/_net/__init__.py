"""Connections: how one is made, taken, and let in.

Each module says what it has.  One imports those before it, never those after:
frame_header, foreign_streams, tls, greeting, connecting, listening, admission, block,
serving.
"""
