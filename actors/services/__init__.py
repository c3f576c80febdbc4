"""Helpers of programs that are started once, used by many, and stopped in any case.

`spec` declares one, `life` is its table of states, `command` runs its two commands,
`files` keeps what outlives a crash, and `service` is what users hold.
"""
