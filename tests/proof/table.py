"""The slices of the proof.  To add one, add an entry here."""

import shlex
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
MOST = 70.0  # minutes for all slices
# A slice, and each of its tests, may take this many times the time of an idle machine.
SLACK = 3.0
LEAST = 3.0  # minutes that every slice gets


@dataclass(frozen=True)
class Slice:
    """A command with large numbers, and the property that it shows.

    ``minutes`` are the time on two idle cores beside one other slice.  ``command`` is
    typed in tests/: environment variables, then Python's arguments.  ``alone``: nothing
    else may run meanwhile.
    """

    name: str
    shows: str
    minutes: float
    command: str
    alone: bool = False

    @property
    def limit(self) -> float:
        """Seconds after which the slice counts as hung."""
        return 60 * max(LEAST, SLACK * self.minutes)

    @property
    def is_pytest(self) -> bool:
        return "python -m pytest " in self.command

    def parsed(self) -> tuple[dict[str, str], list[str]]:
        """Return its environment variables, and Python's arguments."""
        words = shlex.split(self.command)
        python = words.index("python")
        return dict(word.split("=", 1) for word in words[:python]), words[python + 1 :]


SLICES = (
    Slice(
        "simulation",
        "The C part over a simulated kernel, with threads that switch where the seed "
        "says: order, memory, completions and exact errors hold for every seed; a "
        "quarter as many seeds have relays.",
        9,
        "AZC_SIM_SEEDS=200000 python -m pytest slow/test_simulation.py -k 'not race "
        "and not test_relays'",
    ),
    Slice(
        "races",
        "The programs of the simulation with real threads on real pipes and sockets, "
        "under AddressSanitizer and ThreadSanitizer.",
        5,
        "AZC_RACES=20 python -m pytest slow/test_simulation.py -k 'race or "
        "test_relays'",
    ),
    Slice(
        "contract",
        "Each clause of the contract on every link and event loop; what a finalizer, a "
        "fork, a signal or a changed number may do to a stream; relays whose ends die "
        "and whose fds are taken.",
        5,
        "python -m pytest contract core",
    ),
    Slice(
        "threads",
        "The contract without a loop; threads with a loop each that share a pool and "
        "pass frames to each other; both again, with the contract and the core, in a "
        "Python without the GIL, if `make python-t` has built one.",
        8,
        "AZC_THREADS_SECONDS=60 python -m pytest sync slow/test_threads.py "
        "slow/test_without_the_gil.py",
    ),
    Slice(
        "any-order",
        "A stream's calls in any order, on pipes, lent pages, UNIX and TCP sockets, "
        "with peers that die and collections: what arrives is whole, in order, and "
        "nothing else.",
        12,
        "AZC_EXAMPLES=5000 python -m pytest slow/test_state_machine.py",
    ),
    Slice(
        "cancels",
        "A cancel at every await of every public coroutine; every public object "
        "closed, dropped, lost in a cycle, and forked while in use, with the collector "
        "off.",
        6,
        "python -m pytest slow/test_nothing_left.py",
    ),
    Slice(
        "injected-errors",
        "System calls that fail: each call of a scene, with each errno, the first "
        "twenty times; of all such cases a fixed selection.",
        5,
        "AZC_INJECT=800 python -m pytest slow/test_injected_errors.py",
    ),
    Slice(
        "kills",
        "Senders that are killed at any byte: what was read is a prefix.",
        1,
        "AZC_KILLS=250 python -m pytest slow/test_kills.py",
    ),
    Slice(
        "limits",
        "Too few fds, threads, locked memory, address space or pipe pages.",
        4,
        "AZC_LIMITS=all python -m pytest slow/test_limits.py",
    ),
    Slice(
        "readers",
        "Readers of every kind, one that stops inside the kernel's copy, and storms of "
        "signals.",
        1,
        "python -m pytest core/test_readers.py core/test_stalled_readers.py "
        "slow/test_storms.py",
    ),
    Slice(
        "every-line",
        "An exception at every line of every public call, as a signal's handler may "
        "raise it: no buffer stays borrowed, no byte is lost.",
        4,
        "AZC_EVERY_LINE=1 python -m pytest core/test_interruptions.py "
        "commands/test_interrupted.py",
    ),
    Slice(
        "rings",
        "Rings: peers that are killed at any instruction, hostile peers, every "
        "interleaving that the memory model allows.",
        1,
        "AZC_RING_CALLS=10000000 AZC_RING_KILLS=500 python -m pytest "
        "shm/test_ring_header.py shm/test_ring_failures.py shm/test_ring_layout.py",
    ),
    Slice(
        "hostile-peers",
        "Clients of the servers that flood, stall, reset and send nonsense; what a "
        "viewer with a bad link gets.",
        6,
        "AZC_FUZZ=100000 python -m pytest net web",
    ),
    Slice(
        "films",
        "Films of many kinds: each picture once, in order, at its time, and whole.",
        6,
        "python -m pytest ffmpeg",
    ),
    Slice(
        "hostile-crowd",
        "3,200 hostile connections beside 50 viewers, none of whom is dropped.",
        4,
        "AZC_CROWD_SECONDS=10 python -m pytest slow/test_hostile_crowd.py",
        alone=True,
    ),
    Slice(
        "sanitizers",
        "Tests on a build with AddressSanitizer and UndefinedBehaviorSanitizer, and "
        "on one with ThreadSanitizer.",
        6,
        "python -m pytest slow/test_sanitized.py",
    ),
    Slice(
        "controls",
        "Builds that are wrong on purpose: each fault must be caught.",
        2,
        "python -m pytest slow/test_negative_controls.py",
    ),
    Slice(
        "mutants",
        "Small faults in the core, made by a machine: the simulation must notice "
        "those in C and quick tests those in Python, except the listed survivors.",
        12,
        "AZC_MUTANTS=60 python -m pytest slow/test_mutation.py",
    ),
    Slice(
        "fuzzers",
        "Random inputs for all code that reads what others have written.",
        5,
        "AZC_FUZZ_SECONDS=30 python -m pytest slow/test_fuzz.py",
    ),
    Slice(
        "simulated-crowd",
        "100,000 sockets in one process over a simulated kernel: what each costs in "
        "memory and work, and that those which are stuck cost the others nothing.",
        1,
        "AZC_CROWD=100000 python -m pytest slow/test_simulated_crowd.py",
    ),
    Slice(
        "soak",
        "256 streams at once over every kind of link, on asyncio and uvloop, that are "
        "cancelled, closed, aborted and left by their readers; every byte is "
        "compared, and memory, open files and threads do not grow.",
        10.5,
        "python -m soak --seconds 600 --gigabytes 200",
        alone=True,
    ),
)
