"""The actions of a command, one per file, and what several share. Each takes what it needs; it returns an outcome.

actions        find · resize · warm · switch · retire · resume · stop · announce · submit · verify
who runs       foreign: a driver that Tidegate did not start · moved: one on another cluster
elsewhere: a query whose checkpoint is elsewhere · pair: the two drivers of a handover
a new driver   start_watch: until its first batch · start_deadline: how long · driver_check: is it still there?
waiting        waits: how often to look, and for how long
"""
