"""From recordings to one report: figures, tables, pictures and traces."""
