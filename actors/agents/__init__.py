"""The tools of agents: what `creche mcp` serves.

`tools` says what they take and give, `toolbox` carries them out on the public API;
`server` alone knows the protocol's library, and `stdio` is its process.
"""
