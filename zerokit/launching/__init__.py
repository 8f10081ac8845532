"""Starting a run on machines: hostfiles, and the files that launchers and schedulers take."""
