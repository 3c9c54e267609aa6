"""``python -m ampnet``: the same as the command ``ampnet``."""

import sys

from ampnet.cli import main

sys.exit(main())
