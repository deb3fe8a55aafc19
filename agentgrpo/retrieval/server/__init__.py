"""A retrieval server: what `wire` reads, from the other side. Nothing is imported here, so that Starlette and uvicorn
(the extra `serve`) load only where they are used."""
