"""``python -m naspipe``: the same as the ``naspipe`` command."""

import sys

from naspipe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
