"""Network connections: JSON endpoints, pages from the open web, addresses that may be reached.

No other package imports httpx. This module does not import it either, so that it loads only on use."""

from __future__ import annotations

import logging

# httpx's INFO lines hold whole URLs, with the passwords and keys in them
logging.getLogger("httpx").setLevel(logging.WARNING)
