"""Everything that opens a connection: JSON endpoints, pages from the open web, addresses that may be reached.

The only package that imports httpx; nothing is imported here, so that it loads where it is used."""

from __future__ import annotations

import logging

# its INFO lines hold whole URLs, with the passwords and keys in them
logging.getLogger("httpx").setLevel(logging.WARNING)
