"""Fuzz what Python reads.

python tests/fuzz/fuzz_python.py TARGET [options of libFuzzer] [folder]
"""

import sys

import atheris

READERS = ["aiozerocopy", "h11", "wsproto"]

if __name__ == "__main__":
    # (what is imported before, atheris cannot look into)
    with atheris.instrument_imports(include=READERS):
        from targets import TARGETS
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
