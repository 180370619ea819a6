"""Tables, pages and figures of what `read` and `judge` return."""
