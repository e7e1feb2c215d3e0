"""``python -m storagecache``."""

import sys

from .cli import main

sys.exit(main())
