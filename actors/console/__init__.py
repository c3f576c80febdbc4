"""What the verbs of `creche` do for a person at a terminal, or in a script.

Written on the public API alone: `foreground` runs one child on our streams, `operating`
and `attaching` work on the sessions of a running broker. Below them `terminal` and
`stdio` are this process's own, and `keys`, `replay` and `rates` the rules without I/O.
"""
