"""The external scaler of KEDA: answers with the size that the newest decision on a job ends with.

protocol.py     the messages and methods that KEDA speaks
scaler.py       what is answered; pure
app.py          the gRPC server
settings.py     what it is told
"""
