"""The workshop: a generated world of small problems to solve with tools. Nothing is downloaded."""
