"""`make bench`: how fast the package is here, beside others that do the same work.

``python -m bench`` (in tests/) runs all that is in the table, and prints it;
``python -m bench sockets`` runs one bench, with more contenders and races.  `make
bench-table` puts the table into the README and the documentation.

A bench is a module with ``races(lab, quick)``, which yields races: fixed work, and the
contenders that do it, each in processes of its own.  A race begins with a round in
which the receivers compare every byte.  Then it runs in rounds (A B C, A B C, ...),
until there are enough of them or the time is over.  Its `race.Result` has the seconds
and CPU seconds of every round; JSON and tables are made of it.  Ratios are taken within
a round, so that other load on the machine hits both sides; what is shown is their
median and their range.

To add a contender: write the function that does the work (it is called with a
`worker.Job`), name it in the list of its race, and add a `Duel` if the table should
show it.
"""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "support"))
