"""Run every limiter, and print what docs/comparison.md says of them. `--write` fills the page.

`python -m tests.peers`; it takes about a minute, and needs the packages of `pip install 'django-quota[bench]'`,
django-axes and Flask-Limiter.
"""

import argparse

from tests.peers import report


def main() -> None:
    """Measure, print, and write what the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/comparison.md")
    options = parser.parse_args()
    text = report.tables(report.measure())
    print(text)
    if options.write:
        report.write(text)


if __name__ == "__main__":
    main()
