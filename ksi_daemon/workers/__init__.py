"""Work off the event loop: threads, processes, and the import of plugin code."""
