"""`make proof`: every promise, shown in figures, and the page about it.

``python -m proof`` runs the slices of `table`, writes docs/pages/proof.json, and from
it proof.md; ``python -m proof page`` only writes the page again.
"""
