"""`make bench`: how fast it is here, beside others who do the same work.

``python -m bench`` (in tests/) runs all that is in the table, and prints it;
``python -m bench sockets`` runs one bench, with more contenders and races.  `make
bench-table` puts the table into the README and the documentation.

A bench is a module with ``races(lab, quick)``.  It yields races: fixed work, and the
contenders that do it, each in processes of its own.  A race goes through these states:

  planned   `race.Race`; contenders whose packages are missing are left out
  checked   one round that does not count: the receivers compare every byte
  raced     rounds in turn (A B C, A B C, ...), until they are enough or time is over
  told      `results.Result`: the seconds and CPU seconds of every round, which is what
            the JSON has.  Tables are made of it.

Ratios are taken within a round, so that other load on the machine hits both sides; what
is shown is their median and their range.

race        Work, Contender, Race, and how a race is run
results     Result, JSON, and the table
processes   the temporary folder, compiled programs, and processes that report
worker      the Python processes: the clock, the buffers, the event loop
feeding     who feeds sink.c over sockets and pipes, and whom feed.c feeds
video       contenders that feed FFmpeg
instructions  no race: instructions a message, by callgrind; with a test
the others  one bench each: its races above, what its processes do below

To add a contender: write the function that does the work (it is called with a
`worker.Job`), name it in the list of its race, and add a `Duel` if the table should
show it.
"""
