"""Environments of verifiers: a package by its id, in a process of its own.

worker.py        the process: a script of verifiers and the standard library, in an interpreter of the user's choice
process.py       what asks it
dataset.py       its rows as tasks
environment.py   the factory: a rollout is a program that asks the episode's endpoint
"""
