"""`python -m actors`: the same as the command `creche`."""

from actors.cli import main

if __name__ == "__main__":
    main(prog_name="creche")
