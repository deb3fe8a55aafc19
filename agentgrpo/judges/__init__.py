"""Judges: is an answer right, is the evidence enough? Judge models are in judges.llm."""
