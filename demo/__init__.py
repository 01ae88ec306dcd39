"""The demo: a real Spark job under changing load, scaled by the real services, watched, judged and pictured.

house.py    brings up what is needed and ends it        load.py     produces records at a rate
script.py   the phases of the load and their goals      watch.py    samples offsets, follows decisions and results
show.py     the live view                               verdict.py  what must have held
ledger.py   every record accounted for                  report.py   table, picture, HTML
run.py      the whole of it
"""
