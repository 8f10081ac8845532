"""Starting a run on several machines: hostfiles, and files for launchers and schedulers."""
