"""Tools of MCP servers. The package `mcp` is an extra, loaded only when a server is connected to."""
