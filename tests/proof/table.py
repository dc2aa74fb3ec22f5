"""The slices of the proof.  A new one is an entry here, and nothing else."""

from __future__ import annotations

from .slices import Slice

MOST = 70.0  # minutes for all of it

SLICES = (
    Slice(
        "simulation",
        "The C part over a simulated kernel, with threads that switch where the seed "
        "says: order, memory, completions and exact errors hold for every seed; a "
        "quarter as many seeds have relays.",
        minutes=9,
        tests=("slow/test_simulation.py", "-k", "not race and not test_relays"),
        numbers={"AZC_SIM_SEEDS": 200_000},
    ),
    Slice(
        "races",
        "The same with real threads on real pipes and sockets, under AddressSanitizer "
        "and ThreadSanitizer.",
        minutes=5,
        tests=("slow/test_simulation.py", "-k", "race or test_relays"),
        numbers={"AZC_RACES": 20},
    ),
    Slice(
        "contract",
        "Each clause of the contract on every link and event loop, and what a "
        "finalizer, a fork, a signal or a changed number may do to a stream.",
        minutes=2,
        tests=(
            "contract",
            *(
                "core/test_lifetime.py",
                "core/test_lending.py",
                "core/test_finalizers.py",
            ),
            *("core/test_channel.py", "core/test_pool.py", "core/test_buffers.py"),
        ),
    ),
    Slice(
        "any-order",
        "A stream's calls in any order, on pipes, lent pages, UNIX and TCP sockets, "
        "with peers that die, forks, lost fds and collections: what arrives is whole, "
        "in order, and nothing else.",
        minutes=12,
        tests=("slow/test_state_machine.py",),
        numbers={"AZC_EXAMPLES": 5_000},
    ),
    Slice(
        "cancels",
        "A cancel at every await of every public coroutine.",
        minutes=2,
        tests=("slow/test_every_coroutine.py",),
    ),
    Slice(
        "injected-errors",
        "System calls that fail: each call of a scene, with each errno, the first "
        "twenty times; these are drawn from all such cases, always the same.",
        minutes=5,
        tests=("slow/test_injected_errors.py",),
        numbers={"AZC_INJECT": 800},
    ),
    Slice(
        "kills",
        "Readers and senders that are killed at any byte: what was read is a prefix.",
        minutes=1,
        tests=("slow/test_kills.py",),
        numbers={"AZC_KILLS": 250},
    ),
    Slice(
        "limits",
        "Too few fds, threads, locked memory, address space or pipe pages.",
        minutes=4,
        tests=("slow/test_limits.py",),
        numbers={"AZC_LIMITS": "all"},
    ),
    Slice(
        "readers",
        "Readers of every kind, one that stops inside the kernel's copy, forks under "
        "load, storms of signals, allocations that fail.",
        minutes=1,
        tests=(
            *(
                "core/test_readers.py",
                "core/test_stalled_readers.py",
                "core/test_forks.py",
            ),
            *("slow/test_storms.py", "slow/test_allocations.py"),
        ),
        numbers={"AZC_FORKS": 100},
    ),
    Slice(
        "every-line",
        "An exception at every line of every public call, as a signal's handler may "
        "raise it: no buffer stays borrowed, no byte is lost.",
        minutes=4,
        tests=("core/test_interruptions.py", "commands/test_interrupted.py"),
        numbers={"AZC_EVERY_LINE": 1},
    ),
    Slice(
        "rings",
        "Rings: peers that are killed at any instruction, hostile peers, every "
        "interleaving that the memory model allows.",
        minutes=1,
        tests=(
            "shm/test_ring_header.py",
            "shm/test_ring_failures.py",
            "shm/test_ring_layout.py",
        ),
        numbers={"AZC_RING_CALLS": 10_000_000, "AZC_RING_KILLS": 500},
    ),
    Slice(
        "relays",
        "Relays that are stopped, whose ends die and whose fds are taken; splitters "
        "whose readers come and go: no byte is lost or told twice.",
        minutes=3,
        tests=(
            "slow/test_relay_soak.py",
            "core/test_relay.py",
            "slow/test_splitter_soak.py",
        ),
        numbers={"AZC_RELAY_GB": 40, "AZC_SPLITTER_SEEDS": 400},
    ),
    Slice(
        "hostile-peers",
        "Clients of the servers that flood, stall, reset and send nonsense.",
        minutes=3,
        tests=(
            "web/test_floods.py",
            "core/test_peers.py",
            "web/test_server.py",
            "net/test_framing.py",
        ),
        numbers={"AZC_FUZZ": 100_000},
    ),
    Slice(
        "sanitizers",
        "Tests on a build with AddressSanitizer and UndefinedBehaviorSanitizer, and on "
        "one with ThreadSanitizer.",
        minutes=6,
        tests=("slow/test_sanitized.py",),
    ),
    Slice(
        "controls",
        "Builds that are wrong on purpose: each fault must be caught.",
        minutes=2,
        tests=("slow/test_negative_controls.py",),
    ),
    Slice(
        "mutants",
        "Small faults in the core, made by a machine: the simulation must notice those "
        "in C and quick tests those in Python, but for those that are listed.",
        minutes=10,
        tests=("slow/test_mutation.py",),
        numbers={"AZC_MUTANTS": 120},
    ),
    Slice(
        "fuzzers",
        "Random inputs for whatever reads what others have written.",
        minutes=5,
        tests=("slow/test_fuzz.py",),
        numbers={"AZC_FUZZ_SECONDS": 30},
    ),
    Slice(
        "simulated-crowd",
        "100,000 sockets in one process over a simulated kernel: what each costs in "
        "memory and work, and that those which are stuck cost the others nothing.",
        minutes=1,
        tests=("slow/test_simulated_crowd.py",),
        numbers={"AZC_CROWD": 100_000},
    ),
    Slice(
        "soak",
        "256 streams at once over every kind of link, on asyncio and uvloop, that are "
        "cancelled, closed, aborted and left by their readers; every byte is compared, "
        "and memory, open files and threads do not grow.",
        minutes=10.5,
        program=("-m", "soak", "--seconds", "600", "--gigabytes", "200"),
        alone=True,
    ),
    Slice(
        "crowds",
        "1, 10, 100 and 1,000 viewers of one broadcast, viewers in browsers, and pipes "
        "that are always full, at once in one process.",
        minutes=3,
        program=("-m", "crowds"),
        alone=True,
    ),
)
