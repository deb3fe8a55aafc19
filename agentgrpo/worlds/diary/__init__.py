"""The diary: a generated world of days that are read one at a time and asked about afterwards. Nothing is
downloaded."""
