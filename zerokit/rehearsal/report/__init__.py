"""From recordings to one report: figures, tables, plots and traces."""
