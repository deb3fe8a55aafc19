"""The archive: a generated world whose demonstrations are correct but show only part of the skills that its questions
need."""
