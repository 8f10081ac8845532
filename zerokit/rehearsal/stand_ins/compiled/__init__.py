"""What the modules of compiled packages have, a file each; `compiled_packages` says which are whose."""
