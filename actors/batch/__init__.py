"""Many jobs, so many at a time: what `creche batch` does.

The states of one job, and what can go wrong on the way::

    input ──▶ its line is in the joblog ──▶ skipped
      │
      ├──▶ it is no job ──▶ no more are started; what runs is finished; exit code 2
      │
      └──▶ waits for a place ──▶ runs ──▶ ended ──▶ waits for its turn ──▶ finished
                                 ▲  │       │
                                 │  │       └ it failed, and may be tried again: runs
                                 │  │
                                 │  └ `--halt now`, a signal, the engine's end: its tree
                                 │    is killed; nothing is kept of it
                                 └ a job that cannot be started ends at once, as failed

*Finished* is what has its whole line in the joblog. Before that its output has been
written to stdout, or its results have been renamed into place. So whatever kills the
batch, at any moment, a job is either finished with all it has left, or not finished:
then `--resume` runs it, from its start, whether it had been started before or not.
What that may repeat is its output on stdout, and its line in a `.jsonl` file of
results: there the last one of a number counts.

Memory does not grow with the number of jobs. One is read when there is a place for it;
output over a bound lies in files without a name; of those that ended, counts remain,
and a few to be named in the summary. Two things bound what waits to be written: a place
for it, and, with `--keep-order`, where jobs wait for earlier ones, their number.

Pure modules hold the rules (`jobs`, `wording`, `outcome`, `joblog`, `halt`, `pace`,
`tally`, `report`), the others do what they say: `source` reads, `spool` and `records`
write, `progress` and `bar` show, `runner` joins them.
"""
