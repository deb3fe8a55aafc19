"""Questions about the nouns of WordNet, real text that comes as a Debian package."""
