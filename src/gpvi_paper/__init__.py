"""The paper's experiments, their records and report, the readers of their data, and the benchmarks.

All of it stands on the public names of `gpvi`. It adds the commands `gpvi run`, `report`, `demo` and `bench`, and
tables to `gpvi list`, which `gpvi` finds by the entry point `gpvi.commands`. Start reading at `experiments/base.py`,
then an experiment.
"""
