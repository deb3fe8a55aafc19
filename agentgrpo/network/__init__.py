"""Everything that opens a connection: JSON endpoints, pages from the open web, addresses that may be reached.

The only package that imports httpx; nothing is imported here, so that it loads where it is used."""
