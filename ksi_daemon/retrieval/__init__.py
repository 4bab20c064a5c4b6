"""Search that plugins share: chunks, a lexical index, vectors and their fusion, all inside a plugin's own database.

`ksi_daemon.retrieval.retrieval` has the capability itself. It knows no plugin.
"""
