"""The demo: the real services scale a real Spark job under a changing load, and the run is checked and drawn.

environment.py  starts everything and stops it     load.py     produces records at a given rate
script.py       the phases of the load             watch.py    follows offsets, decisions and results
display.py      the live view                      verdict.py  the checks that a run must pass
audit.py        accounts for every record          report.py   tables, picture, HTML
run.py          runs it all                        prove.py    records and audits the run
job.py          the spec of its job                pods.py     the job's pods on Kubernetes
"""
