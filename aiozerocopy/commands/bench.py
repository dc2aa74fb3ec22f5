"""How fast it is here, beside others: see `aiozerocopy.bench`."""

from aiozerocopy.bench import main as main
