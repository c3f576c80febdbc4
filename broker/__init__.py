"""The router: processes, wire and trees underneath `actors`."""
