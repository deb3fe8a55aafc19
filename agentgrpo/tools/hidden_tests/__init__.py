"""Tests that a policy never sees, run against the files it has written.

sandboxed.py   on the host: files and tests in, results out
suite.py       within the sandbox, one for each test: the test, which imports no file of the policy's
testee.py      within the sandbox: the process in which the policy's code runs, asked by a test over two pipes
"""
