"""Environments of the library verifiers: a package, loaded by its id in a separate process.

worker.py        the process: a script that needs only verifiers, in an interpreter that the user chooses
process.py       the client of that process
dataset.py       the package's rows as tasks
environment.py   the factory: a rollout is a program that asks the episode's endpoint
"""
