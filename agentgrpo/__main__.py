"""`python -m agentgrpo` is `agentgrpo`."""

import sys

from agentgrpo.cli import main

sys.exit(main())
