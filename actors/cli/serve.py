"""`creche serve`: a broker for many clients, in the foreground."""

import os
import sys

import click

from actors.cli.words import SECONDS


@click.command()
@click.option(
    "--endpoint",
    metavar="ipc://PATH",
    help="Listen there, in a directory that is private: this user's, with mode 0700; "
    "it is made if it is missing. By default creche/broker.sock in XDG_RUNTIME_DIR; "
    "without that, /run/creche/broker.sock for root, /tmp/creche-UID/broker.sock else.",
)
@click.option(
    "--grace",
    type=SECONDS,
    help="How long children and clients go on without the broker, if that is lost; "
    "it is replaced meanwhile. 0: they do not, and nothing is. [default: 3s]",
)
@click.option(
    "--ready-fd",
    type=click.IntRange(0),
    metavar="N",
    help="Write the endpoint to this descriptor, and close it, once clients can "
    "connect.",
)
@click.option(
    "--print-endpoint",
    is_flag=True,
    help="Print the endpoint alone, instead of the line that says ready.",
)
def serve(
    endpoint: str | None,
    grace: float | None,
    ready_fd: int | None,
    *,
    print_endpoint: bool,
) -> None:
    """Be a broker for many clients.

    In the foreground, until SIGTERM or SIGINT. Once clients can connect, it prints the
    line

        creche broker ready ipc://PATH

    to stdout. What follows "ready" is what they take as `--endpoint`, `CRECHE_BROKER`
    or `actors.Engine(endpoint)`.

    As a service of systemd (Type=notify) it tells when it is ready, that it ends, and
    that it lives, if WatchdogSec asks.
    """
    from actors import ignition  # noqa: PLC0415 - see the package's docstring
    from broker.__main__ import LONGEST_GRACE  # noqa: PLC0415

    if grace is not None and grace > LONGEST_GRACE:
        longest = f"it is at most {LONGEST_GRACE:g} seconds"
        raise click.BadParameter(longest, param_hint="'--grace'")
    command = [sys.executable, "-P", "-m", "broker"]
    if endpoint is not None:
        command += ["--endpoint", endpoint]
    if grace is not None:
        command += ["--grace", str(grace)]
    if ready_fd is not None:
        command += ["--ready-fd", str(ready_fd)]
    if print_endpoint:
        command.append("--print-endpoint")
    os.execve(sys.executable, command, ignition.environment())
