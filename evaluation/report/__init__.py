"""Write the report of a comparison of training objectives as HTML, Markdown, LaTeX or CSV."""
