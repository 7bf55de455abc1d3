"""Reports as HTML, SVG, notebook cells and plots. Pure: data in, text out."""
