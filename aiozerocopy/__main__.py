"""`python -m aiozerocopy` is the `aiozerocopy` command."""

from aiozerocopy.commands.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
