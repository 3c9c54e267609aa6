"""Theme: the colours and measures that all pages share, for light and dark mode, for large and small screens.

A page follows the reader's system (``prefers-color-scheme``). Printed, it is light. If a picture is wider than the
screen, the picture scrolls and not the page: `.wide` and the Gantt chart.
"""

from __future__ import annotations

LIGHT = """
  color-scheme: light; --ink: #1b1f23; --faint: #59636e; --paper: #ffffff; --band: #f6f8fa; --line: #d5dae0;
  --hair: #e6eaee; --rule: #b8c0c8; --slot: #eef1f4; --link: #1f5f9e;
"""
DARK = """
  color-scheme: dark; --ink: #e4e8ec; --faint: #a3adb8; --paper: #14181d; --band: #1b2128; --line: #36404a;
  --hair: #2a323b; --rule: #55616e; --slot: #29313a; --link: #82bbf2;
"""
THEME = f"""
:root {{{LIGHT}}}
@media screen and (prefers-color-scheme: dark) {{
  :root {{{DARK}}}
  svg.graph {{ filter: invert(0.91) hue-rotate(180deg); }}
  svg.graph #patch_1 {{ display: none; }}
}}
* {{ box-sizing: border-box; }}
body {{ font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1240px;
  margin: 1.5rem auto; padding: 0 1rem; overflow-wrap: break-word; }}
.wide {{ overflow-x: auto; }}
@media (max-width: 600px) {{
  body {{ margin: 0.8rem auto; padding: 0 0.7rem; }}
}}
"""
"""For the style of every page."""
