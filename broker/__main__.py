"""`python -m broker`: the supervisor of an embedded or a shared broker."""

import sys

from broker.supervisor import main, parse

if __name__ == "__main__":
    main(parse(sys.argv[1:]))
