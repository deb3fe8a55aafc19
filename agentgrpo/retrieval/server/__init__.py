"""A retrieval server, the counterpart of `wire`. Nothing is imported here, so that Starlette and uvicorn (the extra
`serve`) load only where they are used."""
