"""Tools of MCP servers. The package `mcp` is an extra and loads when a server is connected to."""
