"""``python -m docs.generate``: write the generated parts of the pages, and the JSON schemas."""

from docs.generate.pages import pages

for path, text in pages().items():
    path.write_text(text)
