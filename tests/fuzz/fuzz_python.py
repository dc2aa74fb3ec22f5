"""Fuzz the Python parts that read untrusted bytes.

python tests/fuzz/fuzz_python.py TARGET [options of libFuzzer] [folder]
"""

import sys

import atheris

READERS = ["aiozerocopy", "h11", "wsproto"]

if __name__ == "__main__":
    # (atheris cannot instrument what was imported earlier)
    with atheris.instrument_imports(include=READERS):
        from targets import TARGETS
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
