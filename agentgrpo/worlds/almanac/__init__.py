"""The almanac: a generated world of companies, products, people and cities to search in. Nothing is downloaded."""
