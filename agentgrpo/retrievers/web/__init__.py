"""Search services of the open web, each of them a Retriever. Nothing is imported here."""
