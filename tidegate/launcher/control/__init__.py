"""The control files: what actuator and driver tell each other.

`files.py` names them, and `claims.py` says which actuator may act. They are JSON (`json_files.py`) in a store
(`store.py`): a folder, one that is on neither side's machine (`remote_folder.py`), or a ConfigMap (`config_map.py`).
"""
