"""Tests that cannot fail prove nothing: each deliberate fault must be caught.

Faults that tests of any such library must find, and their names here:

    done before the reader has read the pipe       loan (and the socket: socket_loan)
    the buffer's export given back early           unpin
    two queued messages change places              order
    the tail of a partial write is dropped         tail
    a notice of completion lost or taken twice     event (MSG_ZEROCOPY and its notices,
                                                   with their gaps, are not used)
    lent pages not taken back on cancel            detach, rescue, take_back
    the fd's number not compared with its file     identity
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import sabotage
import trees

# For each fault, the test that must catch it.
CAUGHT_BY = {
    "order": "contract/test_p1_integrity.py::"
    "test_order_of_calls_is_the_order_of_messages",
    "tail": "contract/test_p1_integrity.py::test_fifty_tasks_and_four_threads",
    "rescue": "contract/test_p2_no_later_bytes.py::"
    "test_after_a_cancel_the_message_is_as_it_was",
    "identity": "core/test_lifetime.py::TestNumbers::"
    "test_our_number_is_anothers_during_a_send",
    "late": "core/test_waiter.py::test_a_late_loop_holds_no_peer_up",
    "loan": "core/test_lending.py::TestUntilItIsRead::"
    "test_send_returns_when_the_last_byte_is_read",
    "socket_loan": "core/test_lending.py::TestUntilItIsRead::"
    "test_send_returns_when_the_last_byte_is_read[socket-asyncio]",
    "detach": "core/test_lending.py::TestTakenBack::"
    "test_after_a_cancel_the_reader_sees_old_bytes",
    "event": "core/test_interruptions.py::test_one_line_after_the_other",
    "between": "core/test_relay.py::test_cancelled_every_byte_is_out_or_the_sources",
    "party": "core/test_relay.py::test_pages_are_lent_or_spliced",
    "files": "core/test_fds.py::test_order_with_all_that_is_sent",
    "kept": "core/test_errors.py::test_nothing_is_kept",
    "gate": "contract/test_p4_backpressure.py::test_put_waits_for_room",
    "hold": "shm/test_ring.py::test_held_view_keeps_its_slot",
    "take_back": "core/test_interruptions.py::test_one_line_after_the_other",
    "interrupt": "contract/test_p7_degradation.py::test_without_a_system_call",
    "slot": "capture/test_screen.py::"
    "test_slot_of_a_cancelled_grab_stays_taken_until_the_server_has_answered",
    "stale": "capture/test_screen.py::test_pictures_by_damage_are_whole",
    "unpin": "contract/test_p0_done_means_yours.py::test_pending_send_locks_the_buffer",
}
NEED_X_SERVER = ("slot", "stale")

pytestmark = [pytest.mark.slow, pytest.mark.builds, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.sabotaged(tmp_path_factory.getbasetemp())


def run(tree: Path, fault: str, *tests: str) -> subprocess.Popen[str]:
    """Run these tests on one loop and two links, with a fault."""
    chosen = "unix or adopted or lending or spliced or capture or test_ring or fds"
    chosen += " or part_of_a_frame or late_loop or system_call"
    options = ["-x", "-k", f"asyncio and ({chosen})", "--tb=line"]
    files = (f"tests/{test}" for test in tests)
    return trees.start_tests(tree, *options, *files, **{sabotage.VARIABLE: fault})


@pytest.fixture(scope="module")
def sound(tree: Path) -> tuple[int, str]:
    """Run the tests without a fault; return exit code and report."""
    with run(tree, "none", *CAUGHT_BY.values()) as process:
        said, _ = process.communicate()
    return process.returncode, said


@pytest.fixture(scope="module")
def faulty(
    tree: Path, sound: tuple[int, str]
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Run each fault's test, all at once."""
    assert sound[0] == 0
    started = {fault: run(tree, fault, test) for fault, test in CAUGHT_BY.items()}
    yield started
    for process in started.values():
        with process:
            process.kill()


def test_without_a_fault_all_pass(sound: tuple[int, str]) -> None:
    status, said = sound
    assert status == 0, said
    assert re.search(r"^\d+ passed", said, re.MULTILINE), said


@pytest.mark.parametrize("fault", CAUGHT_BY)
def test_fault_is_caught(faulty: dict[str, subprocess.Popen[str]], fault: str) -> None:
    if fault in NEED_X_SERVER and shutil.which("Xvfb") is None:
        pytest.skip("needs Xvfb")
    said, _ = faulty[fault].communicate()
    assert faulty[fault].returncode == 1, said
    # (the test itself fails, or a check for what it left behind)
    assert re.search(rf"(FAILED|ERROR) tests/{re.escape(CAUGHT_BY[fault])}", said), said
