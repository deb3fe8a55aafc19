"""The archive: a generated world whose demonstrations are right and show only part of what its questions need."""
