"""`make proof`: all that is promised, shown in figures, and the page that says so.

``python -m proof`` runs the slices of `table` and writes docs/pages/proof.json, and
proof.md from it; ``python -m proof page`` only writes the page again.
"""
