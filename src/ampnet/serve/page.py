"""Page: the interface for a browser: inputs of the model, a request to try, counters. One file, nothing is fetched.

It is made from the OpenAPI document, so it says what that says. Everything in it is escaped.
"""

from __future__ import annotations

import json
import shlex
from html import escape
from typing import Any

from ampnet.events.theme import THEME
from ampnet.serve.form import Form
from ampnet.serve.openapi import example

STYLE = """
h1 { font-size: 1.35rem; margin: 0 0 .2rem; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .5rem; }
p.about { color: var(--faint); margin: 0 0 1rem; }
body { max-width: 860px; }
code, pre, textarea { font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, monospace; }
pre, textarea { background: var(--band); color: var(--ink); border: 1px solid var(--line); border-radius: 6px;
  padding: .7rem .8rem; margin: 0; width: 100%; overflow-x: auto; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 22rem; overflow-y: auto; }
textarea { min-height: 7.5rem; resize: vertical; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top;
  padding: .4rem .9rem .4rem 0; border-bottom: 1px solid var(--hair); } th { color: var(--faint); font-weight: 500; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem; margin: 0; }
dl div { background: var(--band); border: 1px solid var(--hair); border-radius: 6px; padding: .5rem .7rem; }
dt { color: var(--faint); font-size: .85rem; } dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
button { font: inherit; color: var(--paper); background: var(--link); border: 0; border-radius: 6px;
  padding: .45rem 1.1rem; margin: .6rem 0; cursor: pointer; } button:disabled { opacity: .5; }
a { color: var(--link); } details { margin-top: .4rem; } summary { cursor: pointer; }
"""
SCRIPT = """
const at = id => document.getElementById(id);
at("command").textContent = at("command").textContent.replace("ADDRESS", location.origin);
at("send").addEventListener("click", async () => {
  at("send").disabled = true; at("answer").hidden = false; at("answer").textContent = "...";
  try {
    const answer = await fetch("predict", {method: "POST", body: at("body").value,
      headers: {"Content-Type": "application/json"}});
    const text = await answer.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 1).replace(/\\n +(?=[-0-9\\]])/g, " "); } catch {}
    at("answer").textContent = answer.status + "\\n" + shown;
  } catch (error) { at("answer").textContent = String(error); }
  at("send").disabled = false; show();
});
const show = async () => {
  try {
    const stats = await (await fetch("stats")).json();
    const all = {...stats, ...stats.weights, ...{responses: Object.values(stats.responses).reduce((a, b) => a + b, 0)}};
    for (const cell of document.querySelectorAll("dd")) cell.textContent = String(all[cell.dataset.name] ?? "–");
  } catch { at("ended").hidden = false; }
};
setInterval(show, 2000);
document.body.dataset.ready = "yes";
"""
COUNTERS = ("epoch", "updates", "responses", "predictions", "batches", "waiting", "seconds")


def page(document: dict[str, Any], form: Form, stats: dict[str, Any], nonce: str, token: bool) -> str:
    """Returns the page. ``token``: whether requests need one."""
    info = document["info"]
    now = {**stats, **stats["weights"], "responses": sum(stats["responses"].values())}
    cells = "".join(
        f'<div><dt>{name}</dt><dd data-name="{name}">{escape(_shown(now.get(name)))}</dd></div>' for name in COUNTERS
    )
    body = example(form)
    asked = json.dumps(body, separators=(", ", ": "))
    secret = ' -H "Authorization: Bearer $AMPNET_TOKEN"' if token else ""
    short = asked if len(asked) < 2000 else "@request.json"
    command = f"curl ADDRESS/predict{secret} -H 'Content-Type: application/json' -d {shlex.quote(short)}"
    texts = f"<p>An instance may also be a text: {escape(form.told)}.</p>" if form.tell is not None else ""
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(described(schema))}</td></tr>"
        for name, schema in form.schema()["properties"].items()
    )
    paths = "".join(
        f"<tr><td><code>{method.upper()} {escape(path)}</code></td><td>{escape(one['summary'])}</td></tr>"
        for path, methods in document["paths"].items()
        for method, one in methods.items()
    )
    errors = "".join(
        f"<tr><td>{status}</td><td>{escape(one['description'])}</td></tr>"
        for status, one in document["paths"]["/predict"]["post"]["responses"].items()
    )
    schema = json.dumps(document["components"]["schemas"]["Instance"], indent=1)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(info["title"])}</title><style>{THEME}{STYLE}</style></head><body>
<h1>{escape(info["title"])}</h1><p class="about">{escape(info["description"])}</p>
<p id="ended" hidden>The server does not answer any more.</p>
<dl>{cells}</dl>
<h2>Inputs</h2><div class="wide"><table><tr><th>argument</th><th>JSON</th></tr>{rows}</table></div>{texts}
<details><summary>JSON schema of an instance</summary><pre>{escape(schema)}</pre></details>
<h2>Try it</h2><textarea id="body" spellcheck="false" aria-label="request">{escape(asked)}</textarea>
<button id="send">POST /predict</button><pre id="answer" hidden></pre>
<h2>From a shell</h2><pre id="command">{escape(command)}</pre>
<h2>Interface</h2><div class="wide"><table>{paths}</table></div>
<details><summary>Responses of /predict</summary><div class="wide"><table>{errors}</table></div></details>
<p><a href="openapi.json">openapi.json</a></p>
<script nonce="{nonce}">{SCRIPT}</script></body></html>
"""


def described(schema: dict[str, Any]) -> str:
    """Returns a JSON schema in words: ``list of integers``."""
    kind = schema["type"]
    if kind == "object":
        return "object: " + "; ".join(f"{name}: {described(one)}" for name, one in schema["properties"].items())
    if kind != "array":
        return {"number": "a number", "boolean": "true or false"}.get(str(kind), "an integer")
    if "prefixItems" in schema:
        return f"list of {len(schema['prefixItems'])}: " + "; ".join(map(described, schema["prefixItems"]))
    fixed = schema.get("minItems") == schema.get("maxItems")
    count = f"{schema['maxItems']} " if fixed else ""
    inner = described(schema["items"])
    plural = {"a number": "numbers", "an integer": "integers", "true or false": "booleans"}.get(inner)
    return f"list of {count}{plural or f'items, each: {inner}'}"


def _shown(value: Any) -> str:
    return "–" if value is None else str(value)
