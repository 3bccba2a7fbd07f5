"""Whether a host can carry a config, said before anything is downloaded or a GPU is taken.

`inventory` looks at the host, once, into plain values; `memory`, `degrees`, `storage` and `host`
judge those values against the config, without torch and without looking at anything themselves;
`check` puts them together into a verdict, `table` into text. `stack` is the check of the GPU
stack's environment, `python -m glimmer.preflight.stack`; it imports nothing else from here.

Enters: a validated config. Leaves: `preflight.json`, a verdict with a finding a line, and a table.
"""
