"""Data sets: files and Hub data sets, read exactly as they are written."""
