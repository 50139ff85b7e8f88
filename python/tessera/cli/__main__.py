"""``python -m tessera.cli`` is the command ``tessera``."""

import sys

from tessera.cli import main

sys.exit(main())
