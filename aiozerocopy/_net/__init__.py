"""Connections: how they are made, accepted and admitted.

Each module says what it has.  One imports those before it, never those after:
frame_header, foreign_streams, tls, greeting, connecting, listening, admission, block,
serving.
"""
