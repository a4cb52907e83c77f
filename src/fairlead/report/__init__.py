"""The faces of records: text for a terminal, HTML, SVG, Prometheus. Pure: records in, text out."""
